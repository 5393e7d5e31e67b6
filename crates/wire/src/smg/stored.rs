//! Stores: blocks with tokens of their own, gathered into runs.

use std::ops::Range;

use super::fields::{Fields, Value};
use super::{Place, Reader, Trouble, locality, name, narrow};
use crate::event::{Event, ExtraKey, MAX_NAME, RejectReason, Stored};

/// One block as it was sent.
#[derive(Debug, Default)]
struct Block {
    hash: u64,
    size: u32,
    lora_id: Option<i64>,
    level: Option<u64>,
    tokens: Range<usize>,
    keys: Range<usize>,
}

impl<'f> Reader<'_, '_, 'f> {
    pub(super) fn stored(&mut self, message: &'f [u8]) -> Result<(), Trouble> {
        // What all blocks have in common may stand behind them, so the message is gone through twice.
        let mut common = Stored::default();
        let mut place = Place::default();
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    value.bytes()?;
                }
                2 => common.parent = Some(narrow(value.varint()?)),
                3 => place.tier = Some(value.varint()?),
                4 => place.medium = Some(name(value)?),
                5 => common.group = Some(value.number()?),
                6 => common.spec_kind = Some(name(value)?),
                7 => common.sliding_window = Some(value.number()?),
                8 => common.locality = locality(value.varint()?),
                9 => common.ownership = Some(name(value)?),
                10 => common.session_id = Some(name(value)?),
                11 => common.lora_name = Some(name(value)?),
                12 => common.cache_salt = Some(name(value)?),
                _ => self.pass_over(),
            }
        }
        let mut run: Option<Stored<'f>> = None;
        let mut parent = common.parent;
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            let (1, Value::Bytes(bytes)) = (number, value) else { continue };
            let block = self.block(bytes)?;
            let medium = Some(Place { level: block.level, ..place }.name());
            let at = self.sink.scratch.hashes.len();
            let hash = narrow(block.hash);
            self.sink.scratch.hashes.push(hash);
            match &mut run {
                Some(run) if continues(run, &block, medium) => {
                    run.hashes.end = at + 1;
                    run.tokens.end = block.tokens.end;
                    self.keys(run, block.keys);
                }
                _ => {
                    let mut next = Stored {
                        hashes: at..at + 1,
                        tokens: block.tokens,
                        block_size: block.size,
                        lora_id: block.lora_id,
                        medium,
                        parent,
                        ..common.clone()
                    };
                    self.keys(&mut next, block.keys);
                    if let Some(run) = run.replace(next) {
                        self.push(Event::Stored(run))?;
                    }
                }
            }
            parent = Some(hash);
        }
        if let Some(run) = run {
            self.push(Event::Stored(run))?;
        }
        Ok(())
    }

    fn block(&mut self, message: &'f [u8]) -> Result<Block, Trouble> {
        let first_token = self.sink.scratch.tokens.len();
        let first_key = self.sink.extra_keys.len();
        let mut block = Block::default();
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => block.hash = value.varint()?,
                2 => value.varints(|token| {
                    let token = u32::try_from(token).map_err(|_| Trouble::Unfit(RejectReason::BadToken))?;
                    self.sink.scratch.tokens.push(token);
                    Ok::<_, Trouble>(())
                })?,
                3 => {
                    block.size = value.number().map_err(|_| Trouble::Unfit(RejectReason::BadBlockSize))?;
                }
                4 => block.lora_id = Some(value.varint()? as i64),
                5 => block.level = Some(value.varint()?),
                6 => {
                    let key = self.extra_key(value.bytes()?)?;
                    self.sink.extra_keys.push(key);
                }
                _ => self.pass_over(),
            }
        }
        block.tokens = first_token..self.sink.scratch.tokens.len();
        block.keys = first_key..self.sink.extra_keys.len();
        let tokens = block.tokens.len();
        if tokens > block.size as usize {
            return Err(Trouble::Unfit(RejectReason::BadBlockSize));
        }
        if tokens > 0 {
            // The last block of a prompt may not be full: it is as large as what is in it.
            block.size = tokens as u32;
        }
        Ok(block)
    }

    fn extra_key(&mut self, message: &'f [u8]) -> Result<ExtraKey<'f>, Trouble> {
        if message.len() > MAX_NAME {
            return Err(Trouble::Unfit(RejectReason::NameTooLong));
        }
        let mut key = None;
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            key = Some(match number {
                1 => ExtraKey::Text(name(value)?),
                2 => ExtraKey::Bytes(value.bytes()?),
                3 => ExtraKey::Integer(value.varint()? as i64),
                4 => self.multimodal(value.bytes()?)?,
                _ => ExtraKey::Other(message),
            });
        }
        // A key that says nothing that we know still makes the block another one.
        Ok(key.unwrap_or(ExtraKey::Other(message)))
    }

    fn multimodal(&mut self, message: &'f [u8]) -> Result<ExtraKey<'f>, Trouble> {
        let (mut id, mut offset) = ("", 0);
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => id = name(value)?,
                2 => offset = value.varint()? as i64,
                _ => self.pass_over(),
            }
        }
        Ok(ExtraKey::Multimodal { id, offset })
    }

    /// Gives a run's last block its keys. Runs without any have no list of them.
    fn keys(&mut self, run: &mut Stored<'f>, keys: Range<usize>) {
        let ranges = &mut self.sink.scratch.extra_ranges;
        match &mut run.extra_keys {
            None if keys.is_empty() => {}
            None => {
                let first = ranges.len();
                ranges.resize(first + run.hashes.len() - 1, keys.start..keys.start);
                ranges.push(keys);
                run.extra_keys = Some(first..ranges.len());
            }
            Some(list) => {
                ranges.push(keys);
                list.end = ranges.len();
            }
        }
    }
}

/// Whether a block is of one run with those before it.
fn continues(run: &Stored<'_>, block: &Block, medium: Option<&str>) -> bool {
    run.block_size == block.size
        && run.lora_id == block.lora_id
        && run.medium == medium
        && run.tokens.is_empty() == block.tokens.is_empty()
}
