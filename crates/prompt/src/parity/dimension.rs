//! What prompts have in common that engines may treat otherwise.

use std::fmt;

/// A property of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Dimension {
    /// Text without a template.
    Plain,
    /// Messages.
    Chat,
    /// A message of the system or of a developer.
    System,
    /// Tools, calls of them, or their results.
    Tools,
    /// An answer of the model among the messages.
    MultiTurn,
    /// Characters beyond ASCII.
    NonAscii,
    /// The last message is the model's.
    TrailingAssistant,
    /// Content as a list of parts.
    Parts,
    /// Variables for the template.
    Kwargs,
}

impl Dimension {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Plain,
        Self::Chat,
        Self::System,
        Self::Tools,
        Self::MultiTurn,
        Self::NonAscii,
        Self::TrailingAssistant,
        Self::Parts,
        Self::Kwargs,
    ];

    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Chat => "chat",
            Self::System => "system",
            Self::Tools => "tools",
            Self::MultiTurn => "multi_turn",
            Self::NonAscii => "non_ascii",
            Self::TrailingAssistant => "trailing_assistant",
            Self::Parts => "parts",
            Self::Kwargs => "kwargs",
        }
    }
}

/// A set of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Dimensions(u16);

impl Dimensions {
    /// With one more, if it applies.
    #[must_use]
    pub fn with_if(self, dimension: Dimension, applies: bool) -> Self {
        Self(self.0 | (u16::from(applies) << dimension as u8))
    }

    /// Whether it is among them.
    pub fn contains(self, dimension: Dimension) -> bool {
        self.0 & (1 << dimension as u8) != 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// As a number, to keep.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// What was kept.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << Dimension::ALL.len()) - 1))
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Dimension> {
        Dimension::ALL.into_iter().filter(move |dimension| self.contains(*dimension))
    }
}

impl From<Dimension> for Dimensions {
    fn from(dimension: Dimension) -> Self {
        Self::default().with_if(dimension, true)
    }
}

impl fmt::Debug for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, dimension) in self.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            f.write_str(dimension.as_str())?;
        }
        Ok(())
    }
}
