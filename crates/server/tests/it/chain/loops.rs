//! Planes in circles.

use std::collections::BTreeSet;

use kvplane_core::{Continuity, LinkTrouble};

use crate::rig::{Engine, Rig, until};

fn ids(site: &Rig) -> BTreeSet<String> {
    site.plane.engines().iter().map(|engine| engine.spec.id.to_string()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_does_not_follow_itself() {
    let engine = Engine::plain();
    let a = Rig::hasty(&[&engine]).await;
    a.follow("me", &a).await;
    until("refused", || a.link_status("me").trouble == Some(LinkTrouble::Loop)).await;
    assert_eq!(a.link_status("me").loops, 1, "and is not tried again at once");
    assert_eq!(ids(&a), set(&["e0", "me"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_planes_that_follow_each_other_have_each_others_engines_once() {
    let (mut one, mut two) = (Engine::plain(), Engine::start(|config| config.seed = 2));
    one.work(3);
    two.work(3);
    let (a, b) = (Rig::hasty(&[&one]).await, Rig::hasty(&[&two]).await);
    b.follow("a", &a).await;
    b.equal("a/e0", &a, "e0", &one).await;
    a.follow("b", &b).await;
    a.equal("b/e0", &b, "e0", &two).await;
    until("refused", || a.link_status("b").refused == set(&["a/e0"])).await;
    // What a follows is new to b's subscription: it is left out there, and refused here.
    two.work(2);
    one.work(2);
    a.equal("b/e0", &b, "e0", &two).await;
    b.equal("a/e0", &a, "e0", &one).await;
    assert_eq!(ids(&a), set(&["e0", "b", "b/e0"]));
    assert_eq!(ids(&b), set(&["e0", "a", "a/e0"]));
    assert_eq!(a.link_status("b").trouble, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_of_three_goes_round_once() {
    let mut engines: Vec<Engine> = (0..3).map(|seed| Engine::start(|config| config.seed = seed)).collect();
    for engine in &mut engines {
        engine.work(3);
    }
    let mut sites = Vec::new();
    for engine in &engines {
        sites.push(Rig::hasty(&[engine]).await);
    }
    // Each follows the one before it.
    for at in 0..3 {
        sites[at].follow("before", &sites[(at + 2) % 3]).await;
    }
    let all = set(&["e0", "before", "before/e0", "before/before/e0"]);
    for at in 0..3 {
        let (here, one, two) = (&sites[at], (at + 2) % 3, (at + 1) % 3);
        here.equal("before/e0", &sites[one], "e0", &engines[one]).await;
        here.equal("before/before/e0", &sites[two], "e0", &engines[two]).await;
    }
    for engine in &mut engines {
        engine.work(2);
    }
    for at in 0..3 {
        let two = (at + 1) % 3;
        let status = sites[at].equal("before/before/e0", &sites[two], "e0", &engines[two]).await;
        assert_eq!(status.continuity, Continuity::Live);
        assert_eq!(ids(&sites[at]), all);
    }
}
