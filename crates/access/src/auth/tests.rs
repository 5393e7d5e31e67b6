//! Callers who are not asked who they are, keys that are replaced, and rows that are missing.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method};

use super::{Access, Gate, Keys, KeysError, Needs, Networks, Port, Proof, Refused, Role, TokenKey, table};
use crate::listen::Peer;

fn gate(access: &Arc<Access>) -> Gate {
    access.gate(Port::Http)
}

fn peer(address: &str) -> Peer {
    Peer::new(address.parse().unwrap(), None)
}

#[test]
fn without_keys_it_is_the_address_that_counts() {
    let (usual, insecure) = (Arc::default(), Arc::new(Access::new(Keys::default(), true)));
    let admit = |access: &Arc<Access>, needs, from: Option<&str>| {
        gate(access).admit(needs, &HeaderMap::new(), from.map(peer).as_ref()).map(Option::unwrap)
    };
    let (read, admin) = (Needs::Role(Role::Read), Needs::Role(Role::Admin));
    for access in [&usual, &insecure] {
        for here in ["127.0.0.1:5", "127.8.9.10:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert_eq!(admit(access, admin, Some(here)).unwrap().proof, Proof::Loopback, "{here}");
        }
        for elsewhere in ["10.0.0.1:5", "[2001:db8::1]:5", "[::ffff:10.0.0.1]:5", "0.0.0.0:5"] {
            let refused = admit(access, admin, Some(elsewhere)).unwrap_err();
            assert_eq!(refused, Refused::NotLoopback, "{elsewhere}");
        }
        assert_eq!(admit(access, admin, None).unwrap_err(), Refused::NotLoopback);
    }
    assert_eq!(admit(&usual, read, Some("10.0.0.1:5")).unwrap_err(), Refused::NotLoopback);
    assert_eq!(admit(&insecure, read, Some("10.0.0.1:5")).unwrap().proof, Proof::Nothing);
}

#[test]
fn a_page_of_another_site_cannot_use_its_readers_machine() {
    let access = Arc::default();
    let from = |origin: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("origin", HeaderValue::from_str(origin).unwrap());
        gate(&access).admit(Needs::Role(Role::Admin), &headers, Some(&peer("127.0.0.1:5")))
    };
    for ours in ["http://127.0.0.1:8090", "http://localhost:8090", "http://[::1]:8090"] {
        assert!(from(ours).is_ok(), "{ours}");
    }
    for foreign in ["http://example.com", "null", "http://127.0.0.1.example.com", "file://"] {
        assert_eq!(from(foreign).unwrap_err(), Refused::ForeignPage, "{foreign}");
    }
}

#[test]
fn only_pages_are_asked_under_which_name() {
    let access: Arc<Access> = Arc::default();
    let headers: HeaderMap = [(HOST, HeaderValue::from_static("kvplane.example"))].into_iter().collect();
    let admit = |port| {
        let caller = access.gate(port).admit(Needs::Role(Role::Read), &headers, Some(&peer("127.0.0.1:5")));
        caller.map(|caller| caller.unwrap().proof)
    };
    assert_eq!(admit(Port::Http), Err(Refused::ForeignHost));
    assert_eq!(admit(Port::Grpc), Ok(Proof::Loopback));
    assert_eq!(admit(Port::Front), Ok(Proof::Loopback));
}

#[test]
fn listeners_beyond_loopback_need_keys() {
    let keys = || {
        let token = TokenKey::new("a", Role::Read, "secret").unwrap();
        Keys::new(vec![token], Vec::new()).unwrap()
    };
    let beyond = ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"];
    let usual = Access::default();
    for address in beyond {
        let error = usual
            .check_listener("listen.http", Port::Http, address.parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains("listen.http") && error.contains("[auth]"), "{error}");
        assert!(error.contains("--insecure"), "{error}");
        for access in [Access::new(keys(), false), Access::new(Keys::default(), true)] {
            assert_eq!(access.check_listener("listen.http", Port::Http, address.parse().unwrap()), Ok(()));
        }
    }
    for address in ["127.0.0.1:1", "[::1]:1"] {
        assert_eq!(usual.check_listener("listen.http", Port::Http, address.parse().unwrap()), Ok(()));
    }
    // Keys are of no use where nobody is asked.
    let with_keys = Access::new(keys(), false);
    for address in ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://10.0.0.1:1", "tcp://eth0:1"] {
        assert!(with_keys.check_open_socket("republish", address, false).is_err(), "{address}");
        assert_eq!(with_keys.check_open_socket("republish", address, true), Ok(()), "{address}");
    }
    for address in ["tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///tmp/x"] {
        assert_eq!(usual.check_open_socket("republish", address, false), Ok(()), "{address}");
    }
}

/// 10.0.0.0/8 may read, 10.1.0.0/16 may everything.
fn open(access: Access) -> Arc<Access> {
    let given = [("10.0.0.0/8", Role::Read), ("10.1.0.0/16", Role::Admin)];
    access.open_to(Networks::new(given.map(|(text, role)| (text.parse().unwrap(), role)), false).unwrap());
    Arc::new(access)
}

#[test]
fn networks_open_the_routes_of_an_indexer_and_nothing_else() {
    let token = || TokenKey::new("a", Role::Admin, "secret").unwrap();
    let keys = Keys::new(vec![token()], Vec::new()).unwrap();
    let (without, with) = (open(Access::default()), open(Access::new(keys, false)));
    let admit = |access: &Arc<Access>, path: &str, role, from: &str, header: Option<(&'static str, &str)>| {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let gate = gate(access).open_to_networks(table::may_be_opened(Some(path)));
        gate.admit(Needs::Role(role), &headers, Some(&peer(from))).map(|caller| caller.unwrap().proof)
    };
    for (access, nobody) in [(&without, Refused::NotLoopback), (&with, Refused::NoKey)] {
        let admit = |path, role, from, header| admit(access, path, role, from, header);
        assert_eq!(admit("/dump", Role::Read, "10.9.0.1:5", None), Ok(Proof::Network));
        assert_eq!(admit("/dump", Role::Read, "[::ffff:10.9.0.1]:5", None), Ok(Proof::Network));
        assert_eq!(admit("/register", Role::Admin, "10.1.0.1:5", None), Ok(Proof::Network));
        let wrong = Err(Refused::WrongRole(Role::Admin));
        assert_eq!(admit("/register", Role::Admin, "10.9.0.1:5", None), wrong);
        assert_eq!(admit("/dump", Role::Read, "11.0.0.1:5", None), Err(nobody));
        for closed in ["/v1/status", "/v1/engines", "/kv_recover", "/metrics", "/nowhere"] {
            assert_eq!(admit(closed, Role::Read, "10.1.0.1:5", None), Err(nobody), "{closed}");
        }
        for header in [("origin", "http://10.1.0.1"), ("referer", "http://x/"), ("sec-fetch-site", "none")] {
            let refused = admit("/dump", Role::Read, "10.1.0.1:5", Some(header));
            assert_eq!(refused, Err(Refused::ForeignPage), "{header:?}");
        }
    }
    // A token decides alone, also where none is needed.
    let wrong = admit(&with, "/dump", Role::Read, "10.1.0.1:5", Some(("authorization", "Bearer other")));
    assert_eq!(wrong, Err(Refused::UnknownToken));
    assert!(with.open_to(Networks::default()) && !with.open_to(Networks::default()));
    assert_eq!(admit(&with, "/dump", Role::Read, "10.1.0.1:5", None), Err(Refused::NoKey));
}

#[test]
fn pages_may_be_beyond_loopback_for_networks_that_are_named() {
    let access = open(Access::default());
    let anywhere = "0.0.0.0:1".parse().unwrap();
    assert_eq!(access.check_listener("listen.http", Port::Http, anywhere), Ok(()));
    assert!(access.check_listener("listen.grpc", Port::Grpc, anywhere).is_err());
    assert!(access.check_listener("front", Port::Front, anywhere).is_err());
}

#[test]
fn other_keys_count_from_the_next_request_on() {
    let keys = |secret: &str| {
        let token = TokenKey::new("a", Role::Read, secret).unwrap();
        Keys::new(vec![token], Vec::new()).unwrap()
    };
    let access = Arc::new(Access::new(keys("old"), false));
    let known = |secret: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {secret}")).unwrap());
        gate(&access).admit(Needs::Role(Role::Read), &headers, Some(&peer("127.0.0.1:5"))).is_ok()
    };
    assert!(known("old") && !known("new"));
    access.replace(keys("new")).unwrap();
    assert!(!known("old") && known("new"));
    assert_eq!(access.replace(Keys::default()), Err(KeysError::Gone));
    assert!(known("new"));
}

#[test]
fn a_route_that_somebody_forgot_is_for_the_strongest_role() {
    // A method of our own that somebody forgot to write down.
    assert_eq!(table::call("/kvplane.v1.Plane/New"), Needs::Role(Role::Admin));
    assert_eq!(table::page(&Method::GET, Some("/new")), Needs::Role(Role::Admin));
    assert_eq!(table::front_call("/x.Y/PauseGeneration"), Needs::Role(Role::Admin));
    assert_eq!(table::front_call("/x.Y/Generate"), Needs::Role(Role::Read));
    assert_eq!(table::front_call("/grpc.health.v1.Health/Check"), Needs::Nothing);
}

#[test]
fn no_row_is_there_twice() {
    assert!(table::PAGES.iter().filter(|(_, path, _)| table::may_be_opened(Some(path))).count() == 10);
    let pages: BTreeSet<_> = table::PAGES.iter().map(|(method, path, _)| (method, path)).collect();
    let calls: BTreeSet<_> = table::CALLS.iter().map(|(service, method, _)| (service, method)).collect();
    assert_eq!((pages.len(), calls.len()), (table::PAGES.len(), table::CALLS.len()));
}
