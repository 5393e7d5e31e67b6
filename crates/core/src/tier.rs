//! Where a block lies, and which kind of attention it belongs to.

use std::fmt;

/// Where a copy of a block lies, as an answer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Accelerator memory.
    Device,
    /// The host's memory.
    Host,
    /// A disk of the host, or storage that the engine did not place any closer.
    Disk,
    /// Another machine.
    Remote,
    /// A medium whose name this build does not know: held, never credited.
    Unknown,
}

impl Tier {
    /// Every tier, warmest first.
    pub const ALL: [Tier; 5] = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote, Tier::Unknown];

    /// Where copies lie that an engine says to be on a medium, and here or elsewhere: what is elsewhere is
    /// remote, whatever it lies on.
    pub fn of(medium: Option<&str>, locality: Option<&str>) -> Self {
        match (Self::from_medium(medium), locality.map(Locality::from_wire)) {
            (Self::Unknown, _) => Self::Unknown,
            (_, Some(Locality::Remote)) => Self::Remote,
            (tier, _) => tier,
        }
    }

    /// What an engine's `medium` means. Absent means device: old engines have no other pool.
    pub fn from_medium(medium: Option<&str>) -> Self {
        const NAMES: [(&str, Tier); 17] = [
            ("", Tier::Device),
            ("GPU", Tier::Device),
            ("DEVICE", Tier::Device),
            ("CPU", Tier::Host),
            ("CPU_PINNED", Tier::Host),
            ("CPU_TIER1", Tier::Host),
            ("CXL", Tier::Host),
            ("CPU_TIER2", Tier::Disk),
            ("DISK", Tier::Disk),
            ("NVME", Tier::Disk),
            ("FS", Tier::Disk),
            ("STORAGE", Tier::Disk),
            ("OBJ", Tier::Remote),
            ("EXTERNAL", Tier::Remote),
            ("NETWORK", Tier::Remote),
            ("REMOTE", Tier::Remote),
            ("SHARED", Tier::Remote),
        ];
        let Some(medium) = medium else { return Tier::Device };
        NAMES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(medium))
            .map_or(Tier::Unknown, |&(_, tier)| tier)
    }

    /// Whether engines tell when blocks leave a medium. vLLM's storage behind the host does not, nor do the
    /// stores of Mooncake and `LMCache`, which write `cpu` in lower case.
    pub fn tells_removals(medium: Option<&str>) -> bool {
        !matches!(medium, Some("STORAGE" | "FS" | "OBJ" | "cpu" | "CXL"))
    }

    /// The name used in status, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Device => "device",
            Tier::Host => "host",
            Tier::Disk => "disk",
            Tier::Remote => "remote",
            Tier::Unknown => "unknown",
        }
    }

    /// A small dense number, for arrays by tier.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a copy is on the engine's own machine, where the engine says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Locality {
    /// On the engine's machine.
    Local,
    /// Elsewhere.
    Remote,
    /// A word that this build does not know.
    Unknown,
}

impl Locality {
    /// What an engine's `locality` means.
    pub fn from_wire(text: &str) -> Self {
        match text {
            "LOCAL" => Self::Local,
            "REMOTE" => Self::Remote,
            _ => Self::Unknown,
        }
    }
}

/// What a cache group's blocks are good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecKind {
    /// Full attention in any storage form: a prefix is usable up to its first missing block.
    Full,
    /// A sliding window: only the blocks within it are needed to go on.
    Sliding,
    /// A recurrent state: the one at the boundary is needed, and nothing else.
    State,
    /// Anything else: what it needs is not known.
    Unknown,
}

impl SpecKind {
    /// What an engine's `kv_cache_spec_kind` means.
    pub fn from_wire(text: &str) -> Self {
        match text {
            "full_attention" | "mla_attention" | "sink_full_attention" => Self::Full,
            "sliding_window" | "sliding_window_mla" => Self::Sliding,
            "mamba" => Self::State,
            _ => Self::Unknown,
        }
    }

    /// The word for status and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sliding => "sliding",
            Self::State => "state",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_of_all_engines_are_known() {
        assert_eq!(Tier::from_medium(None), Tier::Device);
        assert_eq!(Tier::from_medium(Some("GPU")), Tier::Device);
        assert_eq!(Tier::from_medium(Some("cpu")), Tier::Host);
        assert_eq!(Tier::from_medium(Some("STORAGE")), Tier::Disk);
        assert_eq!(Tier::from_medium(Some("OBJ")), Tier::Remote);
        assert_eq!(Tier::from_medium(Some("tape")), Tier::Unknown);
    }

    #[test]
    fn what_is_elsewhere_is_remote_and_storage_tells_no_removals() {
        assert_eq!(Tier::of(Some("STORAGE"), None), Tier::Disk);
        assert_eq!(Tier::of(Some("STORAGE"), Some("LOCAL")), Tier::Disk);
        assert_eq!(Tier::of(Some("STORAGE"), Some("REMOTE")), Tier::Remote);
        assert_eq!(Tier::of(Some("cpu"), Some("REMOTE")), Tier::Remote);
        assert_eq!(Tier::of(Some("tape"), Some("REMOTE")), Tier::Unknown);
        for announced in [None, Some("GPU"), Some("CPU"), Some("CPU_PINNED"), Some("DISK")] {
            assert!(Tier::tells_removals(announced), "{announced:?}");
        }
        for silent in ["STORAGE", "FS", "OBJ", "cpu"] {
            assert!(!Tier::tells_removals(Some(silent)), "{silent}");
        }
    }
}
