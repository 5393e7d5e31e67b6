//! Writing values, each in its shortest form.

/// Appends msgpack values to a buffer.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// What was written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A nil.
    pub fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    /// An unsigned integer.
    pub fn unsigned(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.head(0xcc, &[value as u8]),
            0x100..=0xffff => self.head(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.head(0xce, &(value as u32).to_be_bytes()),
            _ => self.head(0xcf, &value.to_be_bytes()),
        }
    }

    /// A signed integer; one that is not negative is written as an unsigned one.
    pub fn signed(&mut self, value: i64) {
        match value {
            0.. => self.unsigned(value as u64),
            -0x20..=-1 => self.bytes.push(value as u8),
            -0x80..=-0x21 => self.head(0xd0, &[value as u8]),
            -0x8000..=-0x81 => self.head(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => self.head(0xd2, &(value as i32).to_be_bytes()),
            _ => self.head(0xd3, &value.to_be_bytes()),
        }
    }

    /// A double.
    pub fn double(&mut self, value: f64) {
        self.head(0xcb, &value.to_be_bytes());
    }

    /// A text.
    pub fn text(&mut self, text: &str) {
        match text.len() {
            length @ 0..=0x1f => self.bytes.push(0xa0 | length as u8),
            length @ 0x20..=0xff => self.head(0xd9, &[length as u8]),
            length => self.wide_length(length, 0xda, 0xdb),
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// A binary value.
    pub fn binary(&mut self, bytes: &[u8]) {
        match bytes.len() {
            length @ 0..=0xff => self.head(0xc4, &[length as u8]),
            length => self.wide_length(length, 0xc5, 0xc6),
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The head of an array: `length` values must follow.
    pub fn array(&mut self, length: usize) {
        match length {
            0..=0x0f => self.bytes.push(0x90 | length as u8),
            _ => self.wide_length(length, 0xdc, 0xdd),
        }
    }

    /// The head of a map: `length` keys with their values must follow.
    pub fn map(&mut self, length: usize) {
        match length {
            0..=0x0f => self.bytes.push(0x80 | length as u8),
            _ => self.wide_length(length, 0xde, 0xdf),
        }
    }

    /// Bytes that are msgpack already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn head(&mut self, head: u8, body: &[u8]) {
        self.bytes.push(head);
        self.bytes.extend_from_slice(body);
    }

    fn wide_length(&mut self, length: usize, short: u8, long: u8) {
        if let Ok(length) = u16::try_from(length) {
            self.head(short, &length.to_be_bytes());
        } else {
            self.head(long, &(length as u32).to_be_bytes());
        }
    }
}
