//! Who is behind one server: it is asked once for all of them.

use std::collections::{HashMap, VecDeque};

use kvplane_transport::normal_address;

use crate::backend::{Backend, Transport};

/// A backend, and everybody behind it.
pub(crate) struct Group<T> {
    pub(crate) backend: Backend,
    pub(crate) targets: Vec<T>,
}

/// Those who share an address, over HTTP or over gRPC, are one group, in the order of their first.
pub(crate) fn group<T>(targets: impl IntoIterator<Item = (T, Backend)>) -> VecDeque<Group<T>> {
    let mut forming: Vec<Option<Forming<T>>> = Vec::new();
    // Which group has an address.
    let mut known: HashMap<(Transport, String), usize> = HashMap::new();
    for (target, backend) in targets {
        let places = Places::of(&backend);
        // Who has no address at all is not the same as others without one.
        let addresses = places.addresses();
        let mut here = forming.len();
        forming.push(Some(Forming { backend, places, targets: vec![target] }));
        for address in &addresses {
            let Some(&there) = known.get(address).filter(|there| **there != here) else { continue };
            let (first, last) = (here.min(there), here.max(there));
            if unite(&mut forming, first, last) {
                known.values_mut().filter(|at| **at == last).for_each(|at| *at = first);
                here = first;
            }
        }
        for address in addresses {
            known.entry(address).or_insert(here);
        }
    }
    forming.into_iter().flatten().map(Forming::formed).collect()
}

struct Forming<T> {
    backend: Backend,
    places: Places,
    targets: Vec<T>,
}

impl<T> Forming<T> {
    /// An address that is another for some of them would not reach them all, and is left out.
    fn formed(self) -> Group<T> {
        let Self { mut backend, places, targets } = self;
        backend.http = backend.http.filter(|_| places.http != Place::Several);
        backend.grpc = backend.grpc.filter(|_| places.grpc != Place::Several);
        Group { backend, targets }
    }
}

/// The second of two groups joins the first, if there is somewhere to ask both.
fn unite<T>(forming: &mut [Option<Forming<T>>], first: usize, last: usize) -> bool {
    let [Some(one), Some(other)] = [&forming[first], &forming[last]] else { return false };
    let places = Places {
        http: one.places.http.and(&other.places.http),
        grpc: one.places.grpc.and(&other.places.grpc),
    };
    if places.addresses().is_empty() {
        return false;
    }
    let Some(joins) = forming[last].take() else { return false };
    if let Some(group) = &mut forming[first] {
        group.places = places;
        group.targets.extend(joins.targets);
        let (backend, other) = (&mut group.backend, joins.backend);
        backend.http = backend.http.take().or(other.http);
        backend.grpc = backend.grpc.take().or(other.grpc);
        backend.version = backend.version.or(other.version);
        backend.authorization = backend.authorization.take().or(other.authorization);
    }
    true
}

/// Where a group is reached.
struct Places {
    http: Place,
    grpc: Place,
}

impl Places {
    fn of(backend: &Backend) -> Self {
        let place = |url: Option<&str>| url.map_or(Place::Unknown, |url| Place::At(normal_address(url)));
        let grpc = backend.grpc.as_ref().map(|server| server.url.as_str());
        Self { http: place(backend.http.as_deref()), grpc: place(grpc) }
    }

    fn addresses(&self) -> Vec<(Transport, String)> {
        let both = [(Transport::Http, &self.http), (Transport::Grpc, &self.grpc)];
        let at = |(transport, place): (_, &Place)| match place {
            Place::At(address) => Some((transport, address.clone())),
            Place::Unknown | Place::Several => None,
        };
        both.into_iter().filter_map(at).collect()
    }
}

#[derive(Clone, PartialEq)]
enum Place {
    Unknown,
    At(String),
    /// Not all of the group are reached at one address.
    Several,
}

impl Place {
    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Unknown, place) | (place, Self::Unknown) => place.clone(),
            (one, other) if one == other => one.clone(),
            _ => Self::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use kvplane_core::EngineKind;

    use super::*;
    use crate::backend::GrpcServer;

    fn at(http: &str, grpc: &str) -> Backend {
        let some = |url: &str| (!url.is_empty()).then(|| url.to_owned());
        Backend {
            kind: EngineKind::Vllm,
            http: some(http),
            grpc: some(grpc).map(|url| GrpcServer { url, ca: None }),
            version: None,
            authorization: None,
        }
    }

    /// Who is behind each server, and where it is asked.
    fn grouped(backends: &[(&str, &str)]) -> Vec<(Vec<usize>, Backend)> {
        let targets = backends.iter().map(|(http, grpc)| at(http, grpc)).enumerate();
        let sorted = |mut group: Group<usize>| {
            group.targets.sort_unstable();
            (group.targets, group.backend)
        };
        group(targets).into_iter().map(sorted).collect()
    }

    #[test]
    fn one_server_is_one_however_its_address_is_written() {
        let written = ["http://host:80", "http://HOST", "HTTP://host/", "http://host:80/"];
        for (http, grpc) in written.map(|url| (url, "")).into_iter().chain(written.map(|url| ("", url))) {
            let first = if http.is_empty() { ("", "http://host") } else { ("http://host", "") };
            assert_eq!(grouped(&[first, (http, grpc)]).len(), 1, "{http}{grpc}");
        }
        let others =
            ["http://host:81", "https://host", "http://host/a", "http://host/A", "http://other", "host"];
        let all: Vec<_> = others.iter().chain(&["http://host"]).map(|url| (*url, "")).collect();
        assert_eq!(grouped(&all).len(), all.len());
        assert_eq!(grouped(&[("", ""), ("", "")]).len(), 2, "nowhere");
    }

    #[test]
    fn who_shares_either_address_is_asked_together_where_all_are_reached() {
        let (x, y) = ("http://h:1", "http://h:2");
        for pair in [[(x, ""), (x, y)], [(x, y), ("", y)], [(x, y), ("http://h:1/", y)]] {
            assert_eq!(grouped(&pair), [(vec![0, 1], at(x, y))]);
        }
        // The last shows that the first two are one.
        assert_eq!(grouped(&[(x, ""), ("", y), (x, y)]), [(vec![0, 1, 2], at(x, y))]);
        // What would reach only one of them is not where both are asked.
        assert_eq!(grouped(&[(x, y), ("http://h:3", y)]), [(vec![0, 1], at("", y))]);
        assert_eq!(grouped(&[(x, y), (x, "http://h:3")]), [(vec![0, 1], at(x, ""))]);
        assert_eq!(grouped(&[(x, y), ("http://h:3", y), (x, "")]), [(vec![0, 1, 2], at("", y))]);
    }
}
