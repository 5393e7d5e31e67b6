//! Who comes and goes: names get their numbers, and nothing is left of those that nobody needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::census::{Limits, Refused, Whose};
use super::known::Known;
use super::names::{Ghost, Model, Place, Replica, Tenant};
use super::table::Table;

impl Known {
    /// The number of a replica, new or not. Without limits none is refused.
    pub(super) fn admit(&mut self, whose: Whose<'_>, limits: Option<&Limits>) -> Result<u32, Refused> {
        if let Some(replica) = self.find(whose) {
            return Ok(replica);
        }
        let Whose { tenant, model, replica } = whose;
        let tenant_known = self.by_name.get(tenant).copied();
        let model_known = tenant_known.and_then(|number| self.tenants[number].models.get(model).copied());
        let new = 1 + usize::from(tenant_known.is_none()) + usize::from(model_known.is_none());
        self.check_names(limits, &[tenant, model, replica], new)?;
        let tenant = tenant_known.unwrap_or_else(|| {
            let name: Arc<str> = tenant.into();
            self.letters += name.len();
            let number = self.tenants.add(Tenant {
                name: name.clone(),
                models: BTreeMap::new(),
                order: BTreeSet::new(),
                reported_keys: 0,
                scoped: 0,
                by_hits: false,
            });
            self.by_name.insert(name, number);
            number
        });
        let model = model_known.unwrap_or_else(|| {
            let name: Arc<str> = model.into();
            self.letters += name.len();
            let number = self.models.add(Model {
                name: name.clone(),
                replicas: BTreeMap::new(),
                schemes: BTreeMap::new(),
                keys: 0,
                entries: 0,
                scoped: 0,
                ghosts: 0,
            });
            self.tenants[tenant].models.insert(name, number);
            number
        });
        let name: Arc<str> = replica.into();
        self.letters += name.len();
        let number = self.replicas.add(Replica {
            tenant,
            model,
            name: name.clone(),
            report: None,
            last_event_us: 0,
            heard: false,
            ghost: None,
            places: BTreeMap::new(),
            filing: BTreeMap::new(),
        });
        self.models[model].replicas.insert(name, number);
        Ok(number)
    }

    /// The place of an adapter's prefixes, new or not. Without limits none is refused.
    pub(super) fn place(
        &mut self,
        model: u32,
        scheme: &str,
        adapter: &Arc<str>,
        wide: bool,
        limits: Option<&Limits>,
    ) -> Result<u32, Refused> {
        if let Some(place) = self.find_place(model, scheme, adapter, wide) {
            return Ok(place);
        }
        let scheme_known = self.models[model].schemes.contains_key(scheme);
        self.check_names(limits, &[scheme, adapter], 1 + usize::from(!scheme_known))?;
        let name = self.models[model].schemes.get_key_value(scheme).map(|(name, _)| name.clone());
        let name: Arc<str> = name.unwrap_or_else(|| scheme.into());
        self.letters += adapter.len() + if scheme_known { 0 } else { name.len() };
        let table = Table::new(self.seed);
        self.table_bytes += table.bytes();
        let number =
            self.places.add(Place { model, scheme: name.clone(), adapter: adapter.clone(), wide, table });
        self.schemes += usize::from(!scheme_known);
        let scheme = self.models[model].schemes.entry(name).or_default();
        *scheme.adapters.entry(adapter.clone()).or_default().of(wide) = Some(number);
        Ok(number)
    }

    pub(super) fn find_place(&self, model: u32, scheme: &str, adapter: &str, wide: bool) -> Option<u32> {
        let mut places = *self.models[model].schemes.get(scheme)?.adapters.get(adapter)?;
        *places.of(wide)
    }

    fn check_names(&self, limits: Option<&Limits>, names: &[&str], new: usize) -> Result<(), Refused> {
        let Some(limits) = limits else { return Ok(()) };
        if let Some(bytes) = names.iter().map(|name| name.len()).find(|bytes| *bytes > Limits::MAX_NAME_BYTES)
        {
            return Err(Refused::NameTooLong { bytes, max: Limits::MAX_NAME_BYTES });
        }
        if self.names() + new > limits.max_names {
            return Err(Refused::TooManyNames { max: limits.max_names });
        }
        Ok(())
    }

    pub(super) fn close_place(&mut self, place: u32) {
        let Some(Place { model, scheme: name, adapter, wide, table }) = self.places.remove(place) else {
            return;
        };
        self.table_bytes -= table.bytes();
        self.letters -= adapter.len();
        let schemes = &mut self.models[model].schemes;
        let Some(scheme) = schemes.get_mut(&name) else { return };
        if let Some(places) = scheme.adapters.get_mut(&adapter) {
            *places.of(wide) = None;
            if places.narrow.is_none() && places.wide.is_none() {
                scheme.adapters.remove(&adapter);
            }
        }
        if scheme.adapters.is_empty() {
            schemes.remove(&name);
            self.schemes -= 1;
            self.letters -= name.len();
        }
    }

    /// From now on nobody finds the replica by its name, nor is it matched. Its cells go with
    /// [`Self::drain`].
    pub(super) fn detach(&mut self, replica: u32) -> Ghost {
        self.ghosts += 1;
        let owner = &mut self.replicas[replica];
        let ghost = Ghost { replica, nth: self.ghosts, entries: owner.entries() };
        owner.ghost = Some(ghost.nth);
        owner.report = None;
        let model = &mut self.models[owner.model];
        model.replicas.remove(&owner.name);
        model.ghosts += 1;
        let places: SmallVec<[u32; 4]> = owner.places.keys().copied().collect();
        for place in places {
            self.leave_scope(replica, place);
        }
        ghost
    }

    /// Forgets a replica of which nothing is left, and its model and tenant if it was the last.
    pub(super) fn settle(&mut self, replica: u32) {
        if !self.replicas.get(replica).is_some_and(Replica::is_idle) {
            return;
        }
        let Some(Replica { tenant, model, name, ghost, .. }) = self.replicas.remove(replica) else { return };
        self.letters -= name.len();
        let of = &mut self.models[model];
        if ghost.is_some() {
            of.ghosts -= 1;
        } else {
            of.replicas.remove(&name);
        }
        if of.ghosts > 0 || !of.replicas.is_empty() {
            return;
        }
        if let Some(Model { name, .. }) = self.models.remove(model) {
            self.letters -= name.len();
            self.tenants[tenant].models.remove(&name);
        }
        if self.tenants[tenant].models.is_empty()
            && let Some(Tenant { name, .. }) = self.tenants.remove(tenant)
        {
            self.letters -= name.len();
            self.by_name.remove(&name);
        }
    }
}
