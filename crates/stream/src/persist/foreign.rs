//! Types of other rooms that a recorder keeps.

use kvplane_core::{
    Continuity, Epoch, LEVELS, Need, Reason, Resumption, Side, SpecKind, StateDigest, Tier, TrustState,
};
use kvplane_wire::OwnedExtraKey;

use super::{Damaged, Persist, Source};

/// Enums without fields, each variant with a number that never changes.
macro_rules! foreign_enum {
    ($name:ident { $($variant:ident = $number:literal),* }) => {
        impl Persist for $name {
            fn save(&self, out: &mut Vec<u8>) {
                out.push(match self { $(Self::$variant => $number,)* });
            }

            fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
                match u8::load(from)? {
                    $($number => Ok(Self::$variant),)*
                    _ => Err(Damaged("an unknown variant")),
                }
            }
        }
    };
}

foreign_enum!(Tier { Device = 0, Host = 1, Disk = 2, Remote = 3, Unknown = 4 });
foreign_enum!(SpecKind { Full = 0, Sliding = 1, State = 2, Unknown = 3 });
foreign_enum!(Continuity { Connecting = 0, Recovering = 1, Live = 2, Down = 3 });

impl Persist for Epoch {
    fn save(&self, out: &mut Vec<u8>) {
        self.as_u64().save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        u64::load(from).map(Self::from_raw)
    }
}

impl Persist for StateDigest {
    fn save(&self, out: &mut Vec<u8>) {
        self.parts().save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let (low, high) = Persist::load(from)?;
        Ok(Self::from_parts(low, high))
    }
}

/// By name: reasons come and go between releases.
impl Persist for Reason {
    fn save(&self, out: &mut Vec<u8>) {
        Box::<str>::from(self.as_str()).save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        Self::named(&Box::<str>::load(from)?).ok_or(Damaged("an unknown reason"))
    }
}

impl Persist for TrustState {
    fn save(&self, out: &mut Vec<u8>) {
        let active: Vec<_> = self.active().iter().map(|active| (active.reason, active.since_ms)).collect();
        active.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let mut trust = Self::default();
        for (reason, since_ms) in Vec::<(Reason, u64)>::load(from)? {
            trust.degrade(reason, since_ms);
        }
        Ok(trust)
    }
}

impl Persist for Need {
    fn save(&self, out: &mut Vec<u8>) {
        match self {
            Self::Prefix { stride } => {
                out.push(0);
                stride.save(out);
            }
            Self::Run { blocks, stride, tail } => {
                out.push(1);
                blocks.save(out);
                stride.save(out);
                tail.save(out);
            }
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        match u8::load(from)? {
            0 => Ok(Self::Prefix { stride: Persist::load(from)? }),
            1 => Ok(Self::Run {
                blocks: Persist::load(from)?,
                stride: Persist::load(from)?,
                tail: Persist::load(from)?,
            }),
            _ => Err(Damaged("an unknown need")),
        }
    }
}

impl Persist for Side {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { group, kind, need } = self;
        group.save(out);
        kind.save(out);
        need.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        Ok(Self { group: Persist::load(from)?, kind: Persist::load(from)?, need: Persist::load(from)? })
    }
}

impl Persist for Resumption {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { sides, units, drops_last, device_in_doubt, whole_prompt } = self;
        sides.save(out);
        units.save(out);
        [*drops_last, *device_in_doubt, *whole_prompt].save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let sides = Persist::load(from)?;
        let units = <[u32; LEVELS]>::load(from)?;
        let [drops_last, device_in_doubt, whole_prompt] = Persist::load(from)?;
        Ok(Self { sides, units, drops_last, device_in_doubt, whole_prompt })
    }
}

impl Persist for OwnedExtraKey {
    fn save(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => {
                out.push(0);
                text.save(out);
            }
            Self::Bytes(bytes) => {
                out.push(1);
                bytes.save(out);
            }
            Self::Integer(number) => {
                out.push(2);
                number.save(out);
            }
            Self::Multimodal(id, offset) => {
                out.push(3);
                id.save(out);
                offset.save(out);
            }
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        match u8::load(from)? {
            0 => Persist::load(from).map(Self::Text),
            1 => Persist::load(from).map(Self::Bytes),
            2 => Persist::load(from).map(Self::Integer),
            3 => Ok(Self::Multimodal(Persist::load(from)?, Persist::load(from)?)),
            _ => Err(Damaged("an unknown key")),
        }
    }
}
