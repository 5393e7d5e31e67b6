//! Addresses of ranks: rank r of an engine is at port + r.

/// An address that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a transport that engines speak.
    #[error("{0:?} is not an address: use tcp://host:port or ipc://path")]
    NotAnAddress(String),
    /// The port is none, or the last rank's would be.
    #[error(
        "{address:?} has no usable port for rank {rank}: give one from 1 to 65535, for the last rank too (rank r is at port + r)"
    )]
    Port {
        /// As configured.
        address: String,
        /// The rank.
        rank: u32,
    },
    /// Two sockets of one engine cannot be at one place.
    #[error(
        "{events:?} and {replay:?} overlap: with {ranks} ranks both use port {port}; leave as many ports between `events` and `replay` as there are ranks, in the engine and here"
    )]
    Overlap {
        /// The event address.
        events: String,
        /// The replay address.
        replay: String,
        /// How many ranks.
        ranks: u32,
        /// The first port that both use.
        port: u16,
    },
    /// A path cannot be counted up.
    #[error(
        "{0:?} cannot serve several ranks: only tcp ports are counted up; use tcp://host:port, or an engine for each rank"
    )]
    RanksNeedTcp(String),
    /// One of these, with the key that has it.
    #[error("{key}: {error}")]
    Of {
        /// The key.
        key: &'static str,
        /// What is wrong.
        error: Box<AddressError>,
    },
}

impl AddressError {
    /// For `map_err`: the key that has the address.
    pub fn of(key: &'static str) -> impl FnOnce(Self) -> Self {
        move |error| Self::Of { key, error: Box::new(error) }
    }
}

/// The address of rank `rank`. When we connect, a wildcard host means this machine.
pub fn for_rank(address: &str, rank: u32, connect: bool) -> Result<String, AddressError> {
    if address.starts_with("ipc://") && address.len() > "ipc://".len() {
        return if rank == 0 {
            Ok(address.to_owned())
        } else {
            Err(AddressError::RanksNeedTcp(address.to_owned()))
        };
    }
    let not_an_address = || AddressError::NotAnAddress(address.to_owned());
    let rest = address.strip_prefix("tcp://").ok_or_else(not_an_address)?;
    let (host, port) = rest.rsplit_once(':').ok_or_else(not_an_address)?;
    if host.is_empty() {
        return Err(not_an_address());
    }
    let bad_port = || AddressError::Port { address: address.to_owned(), rank };
    let base: u16 = port.parse().map_err(|_| bad_port())?;
    // A bound port of 0 is the system's choice, for every rank anew.
    let port = if base == 0 {
        if connect {
            return Err(bad_port());
        }
        0
    } else {
        u16::try_from(u32::from(base) + rank).map_err(|_| bad_port())?
    };
    let host = match host {
        "*" | "0.0.0.0" | "[::]" if connect => "127.0.0.1",
        host => host,
    };
    Ok(format!("tcp://{host}:{port}"))
}

/// Event and replay ports of an engine's ranks must not meet.
pub fn check_overlap(events: &str, replay: &str, ranks: u32) -> Result<(), AddressError> {
    let split = |address: &str| -> Option<(String, u16)> {
        let (host, port) = address.strip_prefix("tcp://")?.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    let (Some((events_host, first_event)), Some((replay_host, first_replay))) =
        (split(events), split(replay))
    else {
        return Ok(());
    };
    let port = first_event.max(first_replay);
    let apart = u32::from(first_event.abs_diff(first_replay));
    if events_host == replay_host && apart < ranks {
        return Err(AddressError::Overlap {
            events: events.to_owned(),
            replay: replay.to_owned(),
            ranks,
            port,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_ports_up() {
        assert_eq!(for_rank("tcp://10.0.0.1:5557", 0, true).unwrap(), "tcp://10.0.0.1:5557");
        assert_eq!(for_rank("tcp://*:5557", 3, true).unwrap(), "tcp://127.0.0.1:5560");
        assert_eq!(for_rank("tcp://*:5557", 3, false).unwrap(), "tcp://*:5560");
        assert_eq!(for_rank("tcp://[::1]:5557", 1, true).unwrap(), "tcp://[::1]:5558");
        assert_eq!(for_rank("ipc:///tmp/x", 0, true).unwrap(), "ipc:///tmp/x");
    }

    #[test]
    fn event_and_replay_ports_must_not_meet() {
        assert!(check_overlap("tcp://a:5557", "tcp://a:5558", 1).is_ok());
        assert!(check_overlap("tcp://a:5557", "tcp://b:5557", 4).is_ok());
        let error = check_overlap("tcp://a:5557", "tcp://a:5558", 2).unwrap_err();
        assert!(error.to_string().contains("5558"), "{error}");
    }

    #[test]
    fn bad_addresses_are_named() {
        for bad in ["", "5557", "http://a:1", "tcp://a", "tcp://:5", "tcp://a:x", "tcp://a:0", "ipc://"] {
            let error = for_rank(bad, 0, true).unwrap_err();
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
        assert!(for_rank("tcp://a:65535", 1, true).is_err());
        assert!(matches!(for_rank("ipc:///tmp/x", 1, true), Err(AddressError::RanksNeedTcp(_))));
    }
}
