//! Blocks of which the content is known and the tokens are not.

use super::chain::inherit_salt;
use super::{Chain, Parent, SlotId, State};

impl State {
    /// Adds tokens, names and keys to a block of which only the content is known. False if they do not fit
    /// it: then nothing changes.
    pub(crate) fn fill(&mut self, slot: SlotId, mut said: Chain) -> bool {
        let chains = &self.slots[slot as usize].chains;
        let Some(at) = chains.iter().position(|chain| chain.block_size == said.block_size) else {
            return false;
        };
        let known = &chains[at];
        (said.attached, said.content) = (known.attached, known.content);
        if known.parent() != said.parent() {
            return false;
        }
        if let Parent::Block(parent) = said.parent()
            && let Some(parent) = self.find(parent).and_then(|parent| self.attached_chain(parent))
        {
            inherit_salt(&mut said.attributes, &parent.attributes.clone());
        }
        if said.hash_with(&mut self.hasher) != said.content {
            return false;
        }
        self.touch(slot);
        self.attributes.keep(&mut said.attributes);
        if !self.limits.keep_tokens {
            said.drop_tokens();
        }
        self.own += said.cost();
        let old = std::mem::replace(&mut self.slots[slot as usize].chains[at], said);
        self.own -= old.cost();
        self.attributes.release(&old.attributes);
        true
    }
}
