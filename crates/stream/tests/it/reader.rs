//! Somebody who knows of a stream what its entries say, and answers how much of a prompt its engine can go on
//! from: what the index does, slow and plain.

use std::collections::HashMap;
use std::sync::Arc;

use kvplane_core::{ContentHasher, Epoch, Marks, Namespace, Resumption, Tier};
use kvplane_stream::{Entry, Ledger, Transition};

/// A main block.
#[derive(Debug, Clone)]
struct Block {
    parent: Option<u64>,
    content: u64,
    size: u32,
    tiers: Vec<Tier>,
    marks: Marks,
}

/// Follows entries.
#[derive(Debug, Default)]
pub struct Reader {
    epoch: Option<Epoch>,
    blocks: HashMap<u64, Block>,
    resumption: Arc<Resumption>,
}

impl Reader {
    /// Does what entries say.
    pub fn follow(&mut self, entries: &[Arc<Entry>]) {
        for entry in entries {
            if self.epoch != Some(entry.epoch) {
                *self = Self { epoch: Some(entry.epoch), ..Self::default() };
            }
            self.apply(&entry.transitions);
            if let Some(resumption) = &entry.resumption {
                let numbers = |resumption: &Resumption| -> Vec<Option<u32>> {
                    resumption.sides.iter().map(|side| side.group).collect()
                };
                assert!(numbers(resumption).starts_with(&numbers(&self.resumption)), "numbers stay");
                self.resumption = resumption.clone();
            }
            for &(hash, marks) in &entry.marks {
                let block = self.blocks.get_mut(&hash).expect("only blocks that are there are marked");
                block.marks = marks;
            }
        }
    }

    /// Takes over a whole state.
    pub fn load(&mut self, ledger: &Ledger, transitions: &[Transition]) {
        *self = Self { epoch: Some(ledger.epoch()), ..Self::default() };
        self.apply(transitions);
        self.resumption = ledger.resumption().clone();
        for (hash, marks) in ledger.all_marks() {
            self.blocks.get_mut(&hash).expect("only blocks that are there are marked").marks = marks;
        }
    }

    /// That everything was announced.
    pub fn assert_current(&self, ledger: &Ledger) {
        assert_eq!(&self.resumption, ledger.resumption());
        let marked = |(&hash, block): (&u64, &Block)| (hash, block.marks);
        let mut ours: Vec<_> = self.blocks.iter().map(marked).filter(|(_, marks)| marks.0 != 0).collect();
        let mut theirs = ledger.all_marks();
        ours.sort_unstable_by_key(|(hash, _)| *hash);
        theirs.sort_unstable_by_key(|(hash, _)| *hash);
        assert_eq!(ours, theirs, "marks were told wherever they changed");
    }

    fn apply(&mut self, transitions: &[Transition]) {
        for transition in transitions {
            match transition {
                Transition::Stored { tier, parent, blocks } => {
                    let mut parent = *parent;
                    for block in blocks {
                        let new = || Block {
                            parent,
                            content: block.content,
                            size: block.block_size,
                            tiers: Vec::new(),
                            marks: Marks::default(),
                        };
                        let known = self.blocks.entry(block.hash).or_insert_with(new);
                        assert!(!known.tiers.contains(tier), "what is there is not told again");
                        known.tiers.push(*tier);
                        parent = Some(block.hash);
                    }
                }
                Transition::Removed { tier, hashes } => {
                    for hash in hashes {
                        let block = self.blocks.get_mut(hash).expect("what is removed is there");
                        block.tiers.retain(|held| held != tier);
                        if block.tiers.is_empty() {
                            self.blocks.remove(hash);
                        }
                    }
                }
                Transition::Cleared => self.blocks.clear(),
            }
        }
    }

    /// How many tokens of a prompt the engine can go on from, with what is in a tier or a warmer one.
    pub fn cached(&self, prompt: &[u32], salt: Option<&str>, coldest: Tier) -> usize {
        let Some(size) = self.blocks.values().map(|block| block.size).next() else { return 0 };
        assert!(self.blocks.values().all(|block| block.size == size), "main blocks have one size");
        let by_content: HashMap<_, _> =
            self.blocks.iter().map(|(hash, block)| ((block.parent, block.content), (hash, block))).collect();
        let mut hasher = ContentHasher::default();
        // The last token is always computed.
        let usable = prompt.len().saturating_sub(1) / size as usize;
        let (mut parent, mut found) = (None, Vec::new());
        for tokens in prompt.chunks(size as usize).take(usable) {
            let content = hasher.plain(tokens, Namespace::new(None, salt));
            let held = by_content.get(&(parent, content));
            let Some((hash, block)) =
                held.filter(|(_, block)| block.tiers.iter().any(|tier| *tier <= coldest))
            else {
                break;
            };
            parent = Some(**hash);
            found.push(block.marks);
        }
        let has = |at: u32, channel| found[at as usize].has(coldest.index(), channel);
        self.resumption.resumable(found.len() as u32, has) as usize * size as usize
    }
}
