//! Walks over one JSON document and hands out what is called `usage` and `model`: that of the document, or of
//! its `message` or
//! `response`.

use memchr::memchr2;

use super::MAX_USAGE;

/// Bytes of a key that are compared.
const KEY: usize = 12;
/// Depth at which a key can matter.
const DEEP: u32 = 2;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// The object called `usage`.
    Usage(&'a [u8]),
    /// The text called `model` begins with the quote at this place of the piece.
    ModelBegins {
        at: usize,
        /// It is the document's own.
        outer: bool,
    },
    /// It ended in front of this place.
    ModelEnds { at: usize },
}

/// The state between two pieces.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own about what comes next")]
pub(super) struct Walker {
    depth: u32,
    /// Whether the container at depth 1, and at depth 2, is an object.
    objects: [bool; DEEP as usize],
    string: Option<Text>,
    /// The next string is a key.
    key_next: bool,
    key: Key,
    /// The key at depth 1 is one whose value may have a usage.
    inside: bool,
    /// The value that follows is a usage.
    usage_next: bool,
    /// The value that follows is a model.
    model_next: bool,
    /// What was collected of a usage, and the depth at which it ends.
    capture: Option<(Vec<u8>, u32)>,
}

/// In a string.
#[derive(Debug, Clone, Copy)]
struct Text {
    /// The last byte was a backslash.
    escaped: bool,
    is_key: bool,
    is_model: bool,
}

/// The beginning of a key.
#[derive(Debug, Default, Clone, Copy)]
struct Key {
    bytes: [u8; KEY],
    length: usize,
}

impl Key {
    fn push(&mut self, more: &[u8]) {
        for &byte in more {
            if self.length < KEY {
                self.bytes[self.length] = byte;
            }
            // One more than fits is enough to differ.
            self.length = (self.length + 1).min(KEY + 1);
        }
    }

    fn is(&self, name: &[u8]) -> bool {
        self.length == name.len() && self.bytes[..name.len()] == *name
    }
}

impl Walker {
    /// Whether a model has begun, and not ended.
    pub(super) fn in_model(&self) -> bool {
        self.string.is_some_and(|text| text.is_model)
    }

    /// Reads on. Places are counted from `from`, where the bytes are.
    pub(super) fn feed(&mut self, bytes: &[u8], from: usize, mut found: impl FnMut(Found<'_>)) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            at += if let Some(text) = self.string {
                let taken = self.in_string(text, rest);
                if text.is_model && self.string.is_none() {
                    found(Found::ModelEnds { at: from + at + taken });
                }
                taken
            } else {
                let taken = self.outside(rest, &mut found);
                if self.in_model() {
                    found(Found::ModelBegins { at: from + at + taken - 1, outer: self.depth == 1 });
                }
                taken
            };
        }
    }

    /// Takes bytes of a string, its end included.
    fn in_string(&mut self, text: Text, bytes: &[u8]) -> usize {
        if text.escaped {
            self.keep(&bytes[..1], text.is_key);
            self.string = Some(Text { escaped: false, ..text });
            return 1;
        }
        let Some(at) = memchr2(b'"', b'\\', bytes) else {
            self.keep(bytes, text.is_key);
            return bytes.len();
        };
        if bytes[at] == b'\\' {
            self.keep(&bytes[..=at], text.is_key);
            self.string = Some(Text { escaped: true, ..text });
        } else {
            self.keep(&bytes[..at], text.is_key);
            self.collect(&bytes[at..=at]);
            self.string = None;
        }
        at + 1
    }

    fn keep(&mut self, bytes: &[u8], is_key: bool) {
        if is_key {
            self.key.push(bytes);
        }
        self.collect(bytes);
    }

    fn collect(&mut self, bytes: &[u8]) {
        if let Some((collected, _)) = &mut self.capture {
            if collected.len() + bytes.len() > MAX_USAGE {
                self.capture = None;
            } else {
                collected.extend_from_slice(bytes);
            }
        }
    }

    /// Takes bytes up to the next string, that one's quote included.
    fn outside(&mut self, bytes: &[u8], found: &mut impl FnMut(Found<'_>)) -> usize {
        for (at, &byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    let is_key = self.key_next && self.depth <= DEEP;
                    if is_key {
                        self.key = Key::default();
                    }
                    self.usage_next = false;
                    self.collect(&[byte]);
                    let is_model = std::mem::take(&mut self.model_next);
                    self.string = Some(Text { escaped: false, is_key, is_model });
                    return at + 1;
                }
                b'{' | b'[' => self.open(byte),
                b'}' | b']' => self.close(byte, found),
                b':' => {
                    self.collect(&[byte]);
                    self.key_next = false;
                    self.named();
                }
                b',' => {
                    self.collect(&[byte]);
                    (self.usage_next, self.model_next) = (false, false);
                    self.key_next = self.is_object();
                }
                b' ' | b'\t' | b'\r' | b'\n' => self.collect(&[byte]),
                _ => {
                    (self.usage_next, self.model_next) = (false, false);
                    self.collect(&[byte]);
                }
            }
        }
        bytes.len()
    }

    fn is_object(&self) -> bool {
        match self.depth {
            depth @ 1..=DEEP => self.objects[depth as usize - 1],
            _ => false,
        }
    }

    /// A value follows the key.
    fn named(&mut self) {
        let counts = match self.depth {
            1 => {
                self.inside = self.key.is(b"message") || self.key.is(b"response");
                self.objects[0]
            }
            2 => self.inside && self.objects[1],
            _ => false,
        };
        self.usage_next = counts && self.key.is(b"usage");
        self.model_next = counts && self.key.is(b"model");
    }

    fn open(&mut self, byte: u8) {
        if self.usage_next && byte == b'{' && self.capture.is_none() {
            self.capture = Some((Vec::with_capacity(256), self.depth));
        }
        self.collect(&[byte]);
        (self.usage_next, self.model_next) = (false, false);
        self.depth = self.depth.saturating_add(1);
        if let 1..=DEEP = self.depth {
            self.objects[self.depth as usize - 1] = byte == b'{';
        }
        self.key_next = byte == b'{';
    }

    fn close(&mut self, byte: u8, found: &mut impl FnMut(Found<'_>)) {
        self.collect(&[byte]);
        self.depth = self.depth.saturating_sub(1);
        self.key_next = false;
        (self.usage_next, self.model_next) = (false, false);
        if self.capture.as_ref().is_some_and(|(_, depth)| *depth == self.depth)
            && let Some((object, _)) = self.capture.take()
        {
            found(Found::Usage(&object));
        }
    }
}
