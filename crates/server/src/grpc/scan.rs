//! How large a message becomes when it is decoded, found out before it is.
//!
//! Two bytes on the wire can be a sub-message of some hundred bytes in memory. A message is walked with the
//! shapes of the descriptors that reflection serves, and every repeated element is counted with the size that
//! it will have.

use std::collections::HashMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// Messages within messages.
const MAX_DEPTH: usize = 16;
/// A vector's first allocation holds this many elements.
const FIRST_ROOM: usize = 4;
/// What an allocation takes beside its content.
const ALLOCATION: usize = 16;
const POINTERS: usize = 24;

/// Why a message is not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit<'s> {
    /// It would take more than its limit; the outermost field that is to blame.
    TooLarge(&'s str),
    /// Messages are nested too deeply; the outermost field.
    TooDeep(&'s str),
    /// It is not protobuf.
    Malformed,
}

/// The shapes of all messages, and which one each method takes.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    messages: Vec<Shape>,
    methods: HashMap<String, Method>,
}

/// What a method takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    input: usize,
    /// It takes messages as long as the caller sends some.
    pub(crate) streaming: bool,
}

#[derive(Debug, Default)]
struct Shape {
    size: usize,
    fields: HashMap<u32, Field>,
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: Kind,
    repeated: bool,
    /// Its number among the message's fields.
    index: u32,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Message(usize),
    Text,
    /// Bytes that one takes in memory.
    Number(usize),
}

impl Schema {
    /// The shapes of encoded descriptor sets. What cannot be read is left out.
    pub(crate) fn of(sets: &[&[u8]]) -> Self {
        let sets = sets.iter().filter_map(|set| FileDescriptorSet::decode(*set).ok());
        let files: Vec<_> = sets.flat_map(|set| set.file).collect();
        let mut found = Vec::new();
        for file in &files {
            let package = file.package();
            let prefix = if package.is_empty() { String::new() } else { format!(".{package}") };
            for message in &file.message_type {
                collect(&prefix, message, &mut found);
            }
        }
        let numbers: HashMap<&str, usize> =
            found.iter().enumerate().map(|(at, (name, _))| (name.as_str(), at)).collect();
        let mut messages: Vec<Shape> = found
            .iter()
            .map(|(_, message)| {
                let fields = message.field.iter().enumerate();
                let fields = fields.map(|(at, field)| (field.number() as u32, shape(field, at, &numbers)));
                Shape { size: 0, fields: fields.collect() }
            })
            .collect();
        let sizes: Vec<usize> = (0..found.len()).map(|at| size(at, &found, &numbers, 0)).collect();
        for (message, size) in messages.iter_mut().zip(sizes) {
            message.size = size;
        }
        let mut methods = HashMap::new();
        for file in &files {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    if let Some(&input) = numbers.get(method.input_type()) {
                        methods.insert(path, Method { input, streaming: method.client_streaming() });
                    }
                }
            }
        }
        Self { messages, methods }
    }

    /// The method of a call's path.
    pub(crate) fn method(&self, path: &str) -> Option<Method> {
        self.methods.get(path).copied()
    }

    /// Every method's path.
    #[cfg(test)]
    fn paths(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// What a message will take in memory, if that is within its limit.
    pub(crate) fn measure(&self, method: Method, bytes: &[u8], limit: usize) -> Result<usize, Unfit<'_>> {
        let mut scan = Scan { schema: self, left: limit, outermost: "" };
        scan.take(self.messages[method.input].size)?;
        scan.message(method.input, bytes, 0)?;
        Ok(limit - scan.left)
    }
}

fn collect<'d>(prefix: &str, message: &'d DescriptorProto, found: &mut Vec<(String, &'d DescriptorProto)>) {
    let name = format!("{prefix}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, found);
    }
    found.push((name, message));
}

fn shape(field: &FieldDescriptorProto, index: usize, numbers: &HashMap<&str, usize>) -> Field {
    let kind = match field.r#type() {
        Type::Message | Type::Group => {
            numbers.get(field.type_name()).map_or(Kind::Text, |at| Kind::Message(*at))
        }
        Type::String | Type::Bytes => Kind::Text,
        Type::Bool => Kind::Number(1),
        Type::Double | Type::Fixed64 | Type::Sfixed64 | Type::Int64 | Type::Uint64 | Type::Sint64 => {
            Kind::Number(8)
        }
        _ => Kind::Number(4),
    };
    let repeated = field.label() == Label::Repeated;
    Field { name: field.name().to_owned(), kind, repeated, index: index as u32 }
}

/// What a message takes itself, without what it points to. Of a oneof the widest counts.
fn size(
    at: usize,
    found: &[(String, &DescriptorProto)],
    numbers: &HashMap<&str, usize>,
    depth: usize,
) -> usize {
    let mut alternatives: HashMap<i32, usize> = HashMap::new();
    let mut sum = 0;
    for field in &found[at].1.field {
        let of_field = match (field.label(), field.r#type()) {
            // A map is a repeated entry, and its table is larger than a vector's head.
            (Label::Repeated, Type::Message) => POINTERS * 2,
            (Label::Repeated, _) | (_, Type::String) => POINTERS,
            (_, Type::Bytes) => POINTERS + 8,
            (_, Type::Bool) => 2,
            (
                _,
                Type::Enum
                | Type::Int32
                | Type::Uint32
                | Type::Sint32
                | Type::Fixed32
                | Type::Sfixed32
                | Type::Float,
            ) => 8,
            (_, Type::Message | Type::Group) => match numbers.get(field.type_name()) {
                Some(&inner) if depth < MAX_DEPTH => size(inner, found, numbers, depth + 1) + 8,
                _ => POINTERS,
            },
            _ => 16,
        };
        match field.oneof_index {
            Some(oneof) => {
                let widest = alternatives.entry(oneof).or_default();
                *widest = of_field.max(*widest);
            }
            None => sum += of_field,
        }
    }
    sum + alternatives.values().map(|widest| widest + 8).sum::<usize>()
}

struct Scan<'s> {
    schema: &'s Schema,
    left: usize,
    /// The field of the whole message that is being walked.
    outermost: &'s str,
}

impl<'s> Scan<'s> {
    fn take(&mut self, amount: usize) -> Result<(), Unfit<'s>> {
        self.left = self.left.checked_sub(amount).ok_or(Unfit::TooLarge(self.outermost))?;
        Ok(())
    }

    /// An element of a list: lists grow by doubling.
    fn element(&mut self, size: usize, first: bool) -> Result<(), Unfit<'s>> {
        self.take(if first { FIRST_ROOM * size + ALLOCATION } else { 2 * size })
    }

    fn message(&mut self, at: usize, mut bytes: &[u8], depth: usize) -> Result<(), Unfit<'s>> {
        if depth > MAX_DEPTH {
            return Err(Unfit::TooDeep(self.outermost));
        }
        let schema = self.schema;
        let shape = &schema.messages[at];
        let mut seen = 0_u64;
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let number = u32::try_from(tag >> 3).map_err(|_| Unfit::Malformed)?;
            let field = shape.fields.get(&number);
            let first = field.is_some_and(|field| field.index >= 64 || seen & (1 << field.index) == 0);
            if let Some(field) = field {
                seen |= 1_u64.checked_shl(field.index).unwrap_or(0);
                if depth == 0 {
                    self.outermost = &field.name;
                }
            }
            match tag & 7 {
                0 => {
                    varint(&mut bytes)?;
                }
                1 => drop(split(&mut bytes, 8)?),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).map_err(|_| Unfit::Malformed)?;
                    let content = split(&mut bytes, length)?;
                    if let Some(field) = field {
                        self.content(field, content, first, depth)?;
                    }
                    continue;
                }
                5 => drop(split(&mut bytes, 4)?),
                // Groups: their fields are walked as if they were ours, which counts too much rather than too
                // little.
                3 | 4 => continue,
                _ => return Err(Unfit::Malformed),
            }
            if let Some(Field { kind: Kind::Number(width), repeated: true, .. }) = field {
                self.element(*width, first)?;
            }
        }
        Ok(())
    }

    fn content(
        &mut self,
        field: &'s Field,
        content: &[u8],
        first: bool,
        depth: usize,
    ) -> Result<(), Unfit<'s>> {
        match field.kind {
            Kind::Message(inner) => {
                if field.repeated {
                    self.element(self.schema.messages[inner].size, first)?;
                }
                self.message(inner, content, depth + 1)
            }
            Kind::Text => {
                if field.repeated {
                    self.element(POINTERS + 8, first)?;
                }
                self.take(if content.is_empty() { 0 } else { content.len() + ALLOCATION })
            }
            // Packed: at most a number per byte that ends one, and never more than bytes.
            Kind::Number(width) => {
                let ends = content.iter().filter(|byte| **byte < 0x80).count();
                let count =
                    if width == 8 { ends.max(content.len() / 8) } else { ends.max(content.len() / 4) };
                self.take(2 * width * count + ALLOCATION)
            }
        }
    }
}

fn varint<'s>(bytes: &mut &[u8]) -> Result<u64, Unfit<'s>> {
    let mut value = 0_u64;
    for at in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or(Unfit::Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(7 * at).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Unfit::Malformed)
}

fn split<'b, 's>(bytes: &mut &'b [u8], length: usize) -> Result<&'b [u8], Unfit<'s>> {
    let (content, rest) = bytes.split_at_checked(length).ok_or(Unfit::Malformed)?;
    *bytes = rest;
    Ok(content)
}

#[cfg(test)]
mod tests;
