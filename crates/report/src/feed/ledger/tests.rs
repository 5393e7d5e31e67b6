use super::*;

fn block(hash: u64, adapter: &str) -> Described<'_> {
    Described { hash, content: hash, size: 16, adapter: Ok(adapter) }
}

#[test]
fn names_of_adapters_go_with_their_blocks() {
    let mut ledger = Ledger::new(Share::All, 0);
    let mut reported = Vec::new();
    let mut tell = |shift: Shift<'_>| reported.push((shift.adapter.to_string(), shift.now.is_some()));
    for at in 0..1_000 {
        let (one, other) = (format!("adapter-{at}"), format!("other-{at}"));
        let chain = [block(1, &one), block(2, &one)];
        ledger.store(Tier::Device, None, chain.into_iter(), &mut tell);
        // The engine gives the hash to a block of another adapter.
        ledger.store(Tier::Device, None, [block(1, &other)].into_iter(), &mut tell);
        assert_eq!(ledger.adapters.len(), 2);
        ledger.remove(Tier::Device, &[1, 2], &mut tell);
        assert!(ledger.is_empty());
    }
    assert_eq!(ledger.reported(), 0);
    assert!(
        reported.contains(&("adapter-7".to_owned(), true))
            && reported.contains(&("other-7".to_owned(), true))
    );
}
