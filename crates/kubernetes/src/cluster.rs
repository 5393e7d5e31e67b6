//! Which pods are engines now, kept up to date change by change.
//!
//! A pod that is gone keeps its engine for [`LINGER_MS`], unless its address or its place in a group belongs to another
//! pod. Objects are what the API server lists: a pod, or a slice with endpoints of several.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::group::{self, Member, Verdict};
use crate::names;
use crate::pod::Pod;
use crate::settings::Settings;
use crate::wanted::Wanted;

/// How long the engine of a pod that is gone stays. A connection that is cut shows a dead engine sooner; this
/// is for an API server that forgets.
pub const LINGER_MS: u64 = 30_000;
/// Pods of one source: twice as many as a plane has engines by default.
pub const MAX_PODS: usize = 16_384;
/// A model's name is not longer.
const MAX_MODEL: usize = 1 << 10;

/// The pods of one source.
#[derive(Debug, Default)]
pub struct Cluster {
    settings: Settings,
    linger_ms: u64,
    objects: BTreeMap<String, Vec<String>>,
    /// Objects of a list that has not ended.
    listing: Option<BTreeSet<String>>,
    listed: bool,
    pods: BTreeMap<String, Entry>,
    groups: BTreeMap<String, BTreeSet<String>>,
    addresses: BTreeMap<Address, BTreeSet<Claim>>,
    lingering: BTreeSet<(u64, String)>,
    dirty: BTreeSet<String>,
    verdicts: BTreeMap<String, Verdict>,
    /// What engines said that they serve, by the pod's uid.
    models: BTreeMap<String, Learnt>,
    refused: u64,
}

/// A pod's address; with a port where pods share their node's.
type Address = (IpAddr, u16);

/// A pod's claim to an address: that it is there, that it stays, when it was created, and its uid. The greatest wins.
type Claim = (bool, bool, String, String);

#[derive(Debug)]
struct Entry {
    /// As each object has it.
    seen: Vec<(String, Pod)>,
    /// What counts; the last word of a pod that is gone.
    pod: Pod,
    gone_ms: Option<u64>,
}

#[derive(Debug)]
struct Learnt {
    model: String,
    runs: Vec<(String, u32)>,
}

/// A pod's engine that should be asked which model it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The pod.
    pub uid: String,
    /// Its HTTP server.
    pub url: String,
}

impl Cluster {
    /// No pods yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, linger_ms: LINGER_MS, ..Self::default() }
    }

    /// Engines of pods that are gone stay for another time.
    #[must_use]
    pub fn lingering(self, linger_ms: u64) -> Self {
        Self { linger_ms, ..self }
    }

    /// The settings changed.
    pub fn configure(&mut self, settings: Settings) {
        if self.settings != settings {
            self.settings = settings;
            self.dirty.extend(self.groups.keys().cloned());
        }
    }

    /// A list begins: an earlier one that did not end says nothing.
    pub fn list_begins(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// An object of the list.
    pub fn listed(&mut self, object: &str, pods: Vec<Pod>, now_ms: u64) {
        if let Some(listing) = &mut self.listing {
            listing.insert(object.to_owned());
        }
        self.applied(object, pods, now_ms);
    }

    /// The list has ended: what it does not have is gone.
    pub fn list_ends(&mut self, now_ms: u64) {
        let Some(listing) = self.listing.take() else { return };
        self.listed = true;
        let missing: Vec<_> =
            self.objects.keys().filter(|known| !listing.contains(*known)).cloned().collect();
        for object in missing {
            self.deleted(&object, now_ms);
        }
    }

    /// An object is new or has changed.
    pub fn applied(&mut self, object: &str, pods: Vec<Pod>, now_ms: u64) {
        let before = self.objects.remove(object).unwrap_or_default();
        let mut names = BTreeSet::new();
        for pod in pods.into_iter().filter(|pod| !pod.over && !pod.uid.is_empty()) {
            let uid = pod.uid.clone();
            if !self.pods.contains_key(&uid) && self.pods.len() >= MAX_PODS {
                self.refused += 1;
                continue;
            }
            names.insert(uid.clone());
            self.see(&uid, object, pod);
        }
        for uid in before {
            if !names.contains(&uid) {
                self.unsee(&uid, object, now_ms);
            }
        }
        if !names.is_empty() {
            self.objects.insert(object.to_owned(), names.into_iter().collect());
        }
    }

    /// An object is gone.
    pub fn deleted(&mut self, object: &str, now_ms: u64) {
        for uid in self.objects.remove(object).unwrap_or_default() {
            self.unsee(&uid, object, now_ms);
        }
    }

    /// Nothing matches any more: the pool that selected the pods is gone.
    pub fn nothing_matches(&mut self, now_ms: u64) {
        self.list_begins();
        self.list_ends(now_ms);
    }

    /// An engine said which model it serves.
    pub fn learn_model(&mut self, uid: &str, model: &str) {
        let Some(entry) = self.pods.get(uid) else { return };
        if model.len() > MAX_MODEL {
            return;
        }
        self.models.insert(uid.to_owned(), Learnt { model: model.to_owned(), runs: entry.pod.runs() });
        self.dirty.insert(Member::of(&entry.pod).group);
    }

    /// Engines to be asked for their model: those that wait for it, and those whose containers started again since.
    pub fn questions(&self) -> Vec<Question> {
        let questions = self.verdicts.iter().filter_map(|(group, verdict)| {
            let uid = self.leader(group)?;
            let url = match verdict {
                Verdict::Asking(url, ..) => url.clone(),
                Verdict::Engine(wanted) => {
                    let stale = self.models.get(&uid)?.runs != self.pods.get(&uid)?.pod.runs();
                    wanted.http.clone().filter(|_| stale)?
                }
                Verdict::None(..) => return None,
            };
            Some(Question { uid, url })
        });
        questions.collect()
    }

    /// What has changed: for each name, the verdict now, or nothing.
    pub fn settle(&mut self, now_ms: u64) -> Vec<(String, Option<Verdict>)> {
        while let Some((due, uid)) = self.lingering.first().cloned() {
            if due > now_ms {
                break;
            }
            self.lingering.pop_first();
            self.forget(&uid);
        }
        let mut changes = Vec::new();
        for group in std::mem::take(&mut self.dirty) {
            let verdict = self.judge(&group);
            if self.verdicts.get(&group) == verdict.as_ref() {
                continue;
            }
            match &verdict {
                Some(verdict) => self.verdicts.insert(group.clone(), verdict.clone()),
                None => self.verdicts.remove(&group),
            };
            changes.push((group, verdict));
        }
        changes
    }

    /// When something changes by itself.
    pub fn due_ms(&self) -> Option<u64> {
        self.lingering.first().map(|(due, _)| *due)
    }

    /// Every engine now, after [`Cluster::settle`].
    pub fn engines(&self) -> impl Iterator<Item = &Wanted> {
        self.verdicts.values().filter_map(|verdict| match verdict {
            Verdict::Engine(wanted) => Some(&**wanted),
            _ => None,
        })
    }

    /// Pods that are there; and those that were too many.
    pub fn counts(&self) -> (usize, u64) {
        (self.pods.len() - self.lingering.len(), self.refused)
    }

    /// Whether a list has ended.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    fn see(&mut self, uid: &str, object: &str, mut pod: Pod) {
        pod.keep(&self.settings.keys());
        let mut seen = match self.pods.get_mut(uid) {
            Some(entry) => std::mem::take(&mut entry.seen),
            None => Vec::new(),
        };
        match seen.iter_mut().find(|(known, _)| known == object) {
            Some((_, known)) => *known = pod,
            None => seen.push((object.to_owned(), pod)),
        }
        self.place(uid, seen, None);
    }

    fn unsee(&mut self, uid: &str, object: &str, now_ms: u64) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let mut seen = std::mem::take(&mut entry.seen);
        let gone = entry.gone_ms;
        seen.retain(|(known, _)| known != object);
        let gone = seen.is_empty().then(|| gone.unwrap_or(now_ms));
        self.place(uid, seen, gone);
    }

    /// Puts a pod where its object says, and marks whom that concerns.
    fn place(&mut self, uid: &str, seen: Vec<(String, Pod)>, gone_ms: Option<u64>) {
        // Of several, the one with an IPv4 address; then any, but always the same.
        let best = seen.iter().min_by_key(|(object, pod)| (pod.address.map(|ip| ip.is_ipv6()), object));
        let Some(pod) = best.map(|(_, pod)| pod.clone()).or_else(|| Some(self.pods.get(uid)?.pod.clone()))
        else {
            return;
        };
        if let Some(before) = self.pods.remove(uid) {
            let same = before.pod == pod && before.gone_ms == gone_ms;
            if same {
                self.pods.insert(uid.to_owned(), Entry { seen, pod, gone_ms });
                return;
            }
            self.unindex(uid, &before);
        }
        if let Some(gone) = gone_ms {
            self.lingering.insert((gone + self.linger_ms, uid.to_owned()));
        }
        let group = Member::of(&pod).group;
        self.groups.entry(group.clone()).or_default().insert(uid.to_owned());
        self.dirty.insert(group);
        let entry = Entry { seen, pod, gone_ms };
        let claim = claim(&entry);
        self.pods.insert(uid.to_owned(), entry);
        if let Some((address, claim)) = claim {
            self.change_claims(address, |claims| claims.insert(claim));
        }
    }

    fn forget(&mut self, uid: &str) {
        if let Some(entry) = self.pods.remove(uid) {
            self.unindex(uid, &entry);
            self.models.remove(uid);
        }
    }

    fn unindex(&mut self, uid: &str, entry: &Entry) {
        if let Some(gone) = entry.gone_ms {
            self.lingering.remove(&(gone + self.linger_ms, uid.to_owned()));
        }
        let group = Member::of(&entry.pod).group;
        if let Some(members) = self.groups.get_mut(&group) {
            members.remove(uid);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        self.dirty.insert(group);
        if let Some((address, claim)) = claim(entry) {
            self.change_claims(address, |claims| claims.remove(&claim));
        }
    }

    /// Changes who claims an address, and marks whom another owner concerns.
    fn change_claims(&mut self, address: Address, change: impl FnOnce(&mut BTreeSet<Claim>) -> bool) {
        let before = self.owner(address).cloned();
        let claims = self.addresses.entry(address).or_default();
        change(claims);
        let empty = claims.is_empty();
        let after = self.owner(address).cloned();
        if before != after {
            // Without an owner, those that are gone have it again.
            let there = self.addresses.get(&address).into_iter().flatten().map(|(.., uid)| uid.clone());
            let free = before.is_none() || after.is_none();
            let there = there.filter(|_| free);
            let concerned: Vec<_> = there.chain(before).chain(after).collect();
            let groups = concerned.iter().filter_map(|uid| self.pods.get(uid));
            self.dirty.extend(groups.map(|entry| Member::of(&entry.pod).group));
        }
        if empty {
            self.addresses.remove(&address);
        }
    }

    /// The pod that an address belongs to.
    fn owner(&self, address: Address) -> Option<&String> {
        let (live, .., uid) = self.addresses.get(&address)?.last()?;
        live.then_some(uid)
    }

    /// The pods of a group that count, in the order of their places.
    fn members(&self, group: &str) -> BTreeMap<Member, &Entry> {
        let mut members: BTreeMap<Member, &Entry> = BTreeMap::new();
        for uid in self.groups.get(group).into_iter().flatten() {
            let Some(entry) = self.pods.get(uid) else { continue };
            let owner = address(&entry.pod).and_then(|address| self.owner(address));
            // Somebody who is gone owns nothing, but nobody else may have it.
            let usurped = owner.is_some_and(|owner| owner != uid);
            if usurped || (entry.gone_ms.is_some() && entry.pod.address.is_none()) {
                continue;
            }
            let member = Member::of(&entry.pod);
            let rank = |entry: &Entry| {
                let pod = &entry.pod;
                (
                    pod.address.is_some(),
                    entry.gone_ms.is_none(),
                    !pod.leaving,
                    pod.created.clone(),
                    pod.uid.clone(),
                )
            };
            if members.get(&member).is_none_or(|known| rank(known) < rank(entry)) {
                members.insert(member, entry);
            }
        }
        members
    }

    fn leader(&self, group: &str) -> Option<String> {
        let members = self.members(group);
        members.iter().find(|(member, _)| member.worker == 0).map(|(_, entry)| entry.pod.uid.clone())
    }

    fn judge(&self, group: &str) -> Option<Verdict> {
        let members = self.members(group);
        if members.is_empty() {
            return None;
        }
        let pods: Vec<_> = members.iter().map(|(member, entry)| (member, &entry.pod)).collect();
        let leader = members.iter().find(|(member, _)| member.worker == 0).map(|(_, entry)| &entry.pod.uid);
        let model = leader.and_then(|uid| self.models.get(uid)).map(|learnt| learnt.model.as_str());
        Some(group::engine(group, &pods, &self.settings, model))
    }
}

fn claim(entry: &Entry) -> Option<(Address, Claim)> {
    let pod = &entry.pod;
    Some((address(pod)?, (entry.gone_ms.is_none(), !pod.leaving, pod.created.clone(), pod.uid.clone())))
}

/// A pod on its node's network shares the address with others there, and has its ports for itself.
fn address(pod: &Pod) -> Option<Address> {
    let annotated = || pod.annotations.get(names::EVENTS)?.trim().parse().ok();
    let port = || annotated().or_else(|| pod.port(names::EVENTS_PORT)).unwrap_or(1);
    Some((pod.address?, if pod.host_network { port() } else { 0 }))
}
