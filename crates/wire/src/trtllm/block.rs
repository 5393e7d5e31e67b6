//! The blocks of a store, and their tokens.
//!
//! What makes equal tokens different blocks becomes extra keys, in this order:
//!
//! - a token id in hexadecimal digits stands for a multimodal item: the position has id 0, and the first of
//!   a run of equal ones is a [`Multimodal`](ExtraKey::Multimodal) key with the digits as its id;
//! - a token's extra id is two [`Integer`](ExtraKey::Integer) keys, where a run of equal ones begins and
//!   the id itself (numbers that would need a text made for them otherwise);
//! - `mm_keys` are [`Multimodal`](ExtraKey::Multimodal) keys as they are.

use crate::event::{Event, ExtraKey, RejectReason, Stored};
use crate::hash::Hash;

use super::decode::{Parser, Trouble, medium};
use super::field::Seen;
use super::json::Fault;
use super::token;

/// A block that was read; its parts are at the ends of the buffers.
struct Block<'f> {
    hash: Hash,
    like: Likeness<'f>,
    has_keys: bool,
}

/// What the blocks of one store have in common.
#[derive(PartialEq, Eq)]
struct Likeness<'f> {
    size: u32,
    medium: &'static str,
    salt: Option<&'f str>,
}

/// Blocks that follow one another and are alike.
struct Run<'f> {
    like: Likeness<'f>,
    parent: Option<Hash>,
    last: Hash,
    /// Where its hashes, tokens and ranges of keys begin.
    starts: [usize; 3],
    has_keys: bool,
}

/// A token's parts.
struct Token<'f> {
    id: TokenId<'f>,
    extra: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenId<'f> {
    Number(u32),
    Digest(&'f str),
}

impl<'f> Parser<'_, '_, 'f> {
    /// Reads the blocks of a store and makes a store of each run. The first one's parent is not known here.
    pub(super) fn blocks(&mut self) -> Result<(), Trouble> {
        let mut items = self.list(RejectReason::BadType)?;
        let mut run: Option<Run<'f>> = None;
        while self.reader.next(&mut items)? {
            let [hashes, tokens, ranges, ..] = self.sink.levels();
            let block = self.block()?;
            self.sink.scratch.hashes.push(block.hash);
            match &mut run {
                Some(run) if run.like == block.like => {
                    run.last = block.hash;
                    run.has_keys |= block.has_keys;
                }
                _ => {
                    let next = Run {
                        like: block.like,
                        parent: run.as_ref().map(|run| run.last),
                        last: block.hash,
                        starts: [hashes, tokens, ranges],
                        has_keys: block.has_keys,
                    };
                    if let Some(run) = run.replace(next) {
                        self.end_run(&run, [hashes, tokens, ranges]);
                    }
                }
            }
        }
        if let Some(run) = run {
            let [hashes, tokens, ranges, ..] = self.sink.levels();
            self.end_run(&run, [hashes, tokens, ranges]);
        }
        Ok(())
    }

    fn end_run(&mut self, run: &Run<'f>, ends: [usize; 3]) {
        let [hashes, tokens, ranges] = run.starts;
        self.out.events.push(Event::Stored(Stored {
            hashes: hashes..ends[0],
            tokens: tokens..ends[1],
            extra_keys: run.has_keys.then_some(ranges..ends[2]),
            parent: run.parent,
            block_size: run.like.size,
            cache_salt: run.like.salt,
            medium: Some(run.like.medium),
            ..Stored::default()
        }));
    }

    fn block(&mut self) -> Result<Block<'f>, Trouble> {
        let missing = Trouble::Unfit(RejectReason::MissingField);
        let [_, first_token, _, _, first_key] = self.sink.levels();
        let mut items = self.reader.enter(b'{')?;
        let mut seen = Seen::default();
        let (mut hash, mut level, mut salt, mut has_tokens) = (None, None, None, false);
        let mut mm_keys = None;
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"block_hash" => {
                    self.is_again(&mut seen, 0);
                    hash = Some(self.hash()?);
                }
                b"tokens" => {
                    if self.is_again(&mut seen, 1) {
                        self.sink.scratch.tokens.truncate(first_token);
                        self.sink.extra_keys.truncate(first_key);
                    }
                    self.tokens()?;
                    has_tokens = true;
                }
                b"cache_level" => {
                    self.is_again(&mut seen, 2);
                    level = Some(self.reader.unsigned()?);
                }
                b"cache_salt" => {
                    self.is_again(&mut seen, 3);
                    salt = if self.reader.take_null() { None } else { Some(self.text()?) };
                }
                b"mm_keys" => {
                    // Read last, so that the order of keys is not the order of fields.
                    mm_keys = Some(self.reader.position());
                    self.skip_known(&mut seen, 4)?;
                }
                b"type" => self.skip_known(&mut seen, 5)?,
                b"priority" => self.skip_known(&mut seen, 6)?,
                _ => self.skip_unknown()?,
            }
        }
        if let Some(position) = mm_keys {
            let end = self.reader.position();
            self.reader.seek(position);
            self.mm_keys()?;
            self.reader.seek(end);
        }
        let (Some(hash), Some(level), true) = (hash, level, has_tokens) else { return Err(missing) };
        let size = self.sink.scratch.tokens.len() - first_token;
        let size = u32::try_from(size).ok().filter(|size| *size > 0);
        let size = size.ok_or(Trouble::Unfit(RejectReason::BadBlockSize))?;
        let keys = first_key..self.sink.extra_keys.len();
        let has_keys = !keys.is_empty();
        self.sink.scratch.extra_ranges.push(keys);
        Ok(Block { hash, like: Likeness { size, medium: medium(level), salt }, has_keys })
    }

    fn tokens(&mut self) -> Result<(), Trouble> {
        let mut items = self.list(RejectReason::BadToken)?;
        let mut last = Token { id: TokenId::Number(0), extra: 0 };
        let mut offset = 0;
        while self.reader.next(&mut items)? {
            let token = match token::plain(self.reader.rest()) {
                Some((id, rest)) => {
                    self.reader.seek_rest(rest);
                    Token { id: TokenId::Number(id), extra: 0 }
                }
                None => self.token()?,
            };
            let id = match token.id {
                TokenId::Number(id) => id,
                TokenId::Digest(id) => {
                    if token.id != last.id {
                        self.sink.extra_keys.push(ExtraKey::Multimodal { id, offset });
                    }
                    0
                }
            };
            if token.extra != 0 && token.extra != last.extra {
                let extra = ExtraKey::Integer(token.extra.cast_signed());
                self.sink.extra_keys.extend([ExtraKey::Integer(offset), extra]);
            }
            self.sink.scratch.tokens.push(id);
            last = token;
            offset += 1;
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Token<'f>, Trouble> {
        let bad_token = || Trouble::Unfit(RejectReason::BadToken);
        let mut items = match self.reader.enter(b'{') {
            Err(Fault::Mismatch) => return Err(bad_token()),
            items => items?,
        };
        let mut seen = Seen::default();
        let mut id = None;
        let mut extra = 0;
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"token_id" => {
                    self.is_again(&mut seen, 0);
                    id = Some(match self.reader.unsigned() {
                        Ok(id) => TokenId::Number(u32::try_from(id).map_err(|_| bad_token())?),
                        Err(Fault::Mismatch) => TokenId::Digest(self.token_digest()?),
                        Err(fault) => return Err(fault.into()),
                    });
                }
                b"token_extra_id" => {
                    self.is_again(&mut seen, 1);
                    extra = if self.reader.take_null() { 0 } else { self.reader.unsigned()? };
                }
                b"type" => self.skip_known(&mut seen, 2)?,
                _ => self.skip_unknown()?,
            }
        }
        Ok(Token { id: id.ok_or_else(bad_token)?, extra })
    }

    fn token_digest(&mut self) -> Result<&'f str, Trouble> {
        match self.text() {
            Err(Trouble::Unfit(_)) => Err(Trouble::Unfit(RejectReason::BadToken)),
            text => text.and_then(|text| {
                let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                if is_hex { Ok(text) } else { Err(Trouble::Unfit(RejectReason::BadToken)) }
            }),
        }
    }

    fn mm_keys(&mut self) -> Result<(), Trouble> {
        if self.reader.take_null() {
            return Ok(());
        }
        let mut list = self.list(RejectReason::BadType)?;
        while self.reader.next(&mut list)? {
            let mut items = self.reader.enter(b'{')?;
            let mut seen = Seen::default();
            let (mut id, mut offset) = (None, None);
            while let Some(key) = self.reader.next_key(&mut items)? {
                match key {
                    b"hash" => {
                        self.is_again(&mut seen, 0);
                        id = Some(self.text()?);
                    }
                    b"start_offset" => {
                        self.is_again(&mut seen, 1);
                        offset = i64::try_from(self.reader.unsigned()?).ok();
                    }
                    b"type" => self.skip_known(&mut seen, 2)?,
                    b"uuid" => self.skip_known(&mut seen, 3)?,
                    _ => self.skip_unknown()?,
                }
            }
            let (id, offset) = id.zip(offset).ok_or(Trouble::Unfit(RejectReason::MissingField))?;
            self.sink.extra_keys.push(ExtraKey::Multimodal { id, offset });
        }
        Ok(())
    }
}
