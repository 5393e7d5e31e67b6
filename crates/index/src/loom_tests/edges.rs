//! Edges: what is there throughout is found, whatever happens beside it.

use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;

use super::{explore, extent};
use crate::arena::Arena;
use crate::edges::{By, Edges, SLOTS};
use crate::extent::{Extent, ROOT};

/// Extents that all belong into the first of two buckets: more than fit.
fn crowded(arena: &mut Arena, edges: &Edges) -> Vec<&'static Extent> {
    let mut contents = (1_u64..).map(u64::reverse_bits).filter(|content| edges.home_of(ROOT, *content) == 0);
    (1..=SLOTS as u32 + 2)
        .map(|id| extent(arena, id, &[contents.next().unwrap()], 1, std::ptr::null_mut()))
        .collect()
}

fn find(edges: &Edges, extent: &Extent) -> Option<u32> {
    // SAFETY: nothing is freed before the threads have ended.
    unsafe { edges.find(ROOT, extent.contents()[0]) }.map(|found| found.id)
}

#[test]
fn what_lies_elsewhere_is_found_while_neighbours_come_and_go() {
    explore(3, || {
        let mut arena = Arena::new();
        let edges = Arc::new(Edges::new(By::Path, 2));
        let extents = crowded(&mut arena, &edges);
        // The last two lie in the second bucket.
        let (stays, comes_and_goes) = (extents[SLOTS], extents[SLOTS + 1]);
        for extent in &extents[..=SLOTS] {
            edges.insert(NonNull::from(*extent));
        }
        let reader = {
            let edges = edges.clone();
            thread::spawn(move || {
                assert_eq!(find(&edges, stays), Some(stays.id));
                let found = find(&edges, comes_and_goes);
                assert!(found.is_none_or(|id| id == comes_and_goes.id));
            })
        };
        edges.insert(NonNull::from(comes_and_goes));
        edges.remove(NonNull::from(extents[0]));
        edges.remove(NonNull::from(comes_and_goes));
        reader.join().unwrap();
        drop(arena);
    });
}

#[test]
fn what_is_put_elsewhere_is_found_as_soon_as_anybody_knows_of_it() {
    explore(3, || {
        let mut arena = Arena::new();
        let edges = Arc::new(Edges::new(By::Path, 2));
        let extents = crowded(&mut arena, &edges);
        for extent in &extents[..SLOTS] {
            edges.insert(NonNull::from(*extent));
        }
        // As in a split: the later part is put in, then the first part takes the place of the whole.
        let (whole, later) = (extents[0], extents[SLOTS]);
        let part = extent(&mut arena, 100, &[whole.contents()[0]], 1, std::ptr::null_mut());
        let reader = {
            let edges = edges.clone();
            thread::spawn(move || match find(&edges, whole) {
                Some(id) if id == whole.id => {}
                Some(100) => assert_eq!(find(&edges, later), Some(later.id)),
                other => panic!("{other:?}"),
            })
        };
        edges.insert(NonNull::from(later));
        edges.replace(NonNull::from(whole), NonNull::from(part));
        reader.join().unwrap();
        drop(arena);
    });
}
