//! A batch of events that were never bytes: what a program says by calls.

use std::ops::Range;

use crate::decode::{Decoder, Scratch, Sink, check_store};
use crate::event::{Batch, Event, ExtraKey, MAX_NAME, RejectReason, Removed, Stored, bounded};
use crate::hash::Hash;
use crate::owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};

impl Decoder {
    /// The batch of these events, as if an engine had sent them. One that does not hold together makes them
    /// all none.
    pub fn assemble<'d, 'f>(
        &'d mut self,
        timestamp: f64,
        events: &'f [OwnedEvent],
    ) -> Result<Batch<'d, 'f>, RejectReason> {
        self.fill(timestamp, |sink| events.iter().map(|event| assemble(event, sink)).collect())
    }
}

fn assemble<'f>(event: &'f OwnedEvent, sink: &mut Sink<'_, 'f>) -> Result<Event<'f>, RejectReason> {
    match event {
        OwnedEvent::Stored(stored) => assemble_stored(stored, sink).map(Event::Stored),
        OwnedEvent::Removed(removed) => assemble_removed(removed, sink.scratch).map(Event::Removed),
        OwnedEvent::Cleared => Ok(Event::Cleared { ownership: None }),
    }
}

fn assemble_stored<'f>(owned: &'f OwnedStored, sink: &mut Sink<'_, 'f>) -> Result<Stored<'f>, RejectReason> {
    let first_token = sink.scratch.tokens.len();
    sink.scratch.tokens.extend_from_slice(&owned.token_ids);
    let stored = Stored {
        hashes: hashes(&owned.block_hashes, sink.scratch)?,
        tokens: first_token..sink.scratch.tokens.len(),
        bigrams: owned.bigrams,
        extra_keys: owned.extra_keys.as_deref().map(|blocks| extra_keys(blocks, sink)).transpose()?,
        parent: match &owned.parent {
            Some(parent) => Some(hash(parent, &mut sink.scratch.digests)?),
            None => None,
        },
        block_size: owned.block_size,
        lora_id: owned.lora_id,
        lora_name: owned.lora_name.as_deref(),
        cache_salt: owned.cache_salt.as_deref(),
        medium: owned.medium.as_deref(),
        group: owned.group,
        spec_kind: owned.spec_kind.as_deref(),
        sliding_window: owned.sliding_window,
        locality: owned.locality.as_deref(),
        ownership: owned.ownership.as_deref(),
        session_id: owned.session_id.as_deref(),
    };
    let Stored { lora_name, cache_salt, medium, spec_kind, locality, ownership, session_id, .. } = stored;
    for name in [lora_name, cache_salt, medium, spec_kind, locality, ownership, session_id] {
        name.map(bounded).transpose()?;
    }
    check_store(&stored, sink)?;
    Ok(stored)
}

fn assemble_removed<'f>(owned: &'f OwnedRemoved, scratch: &mut Scratch) -> Result<Removed<'f>, RejectReason> {
    Ok(Removed {
        hashes: hashes(&owned.block_hashes, scratch)?,
        medium: owned.medium.as_deref(),
        anywhere: false,
        group: owned.group,
        locality: owned.locality.as_deref(),
        ownership: owned.ownership.as_deref(),
    })
}

fn hashes(owned: &[OwnedHash], scratch: &mut Scratch) -> Result<Range<usize>, RejectReason> {
    let first = scratch.hashes.len();
    for one in owned {
        scratch.hashes.push(hash(one, &mut scratch.digests)?);
    }
    Ok(first..scratch.hashes.len())
}

fn hash(owned: &OwnedHash, digests: &mut Vec<u8>) -> Result<Hash, RejectReason> {
    let hash = match owned {
        OwnedHash::Unsigned(bits) => Some(Hash::integer(*bits, false)),
        OwnedHash::Signed(number) => Some(Hash::integer(*number as u64, *number < 0)),
        OwnedHash::Bytes(digest) => Hash::from_bytes(digest, digests),
        OwnedHash::Hex(digest) => Hash::from_hex_bytes(digest, digests),
    };
    hash.ok_or(RejectReason::BadHash)
}

fn extra_keys<'f>(
    blocks: &'f [Option<Vec<OwnedExtraKey>>],
    sink: &mut Sink<'_, 'f>,
) -> Result<Range<usize>, RejectReason> {
    let first = sink.scratch.extra_ranges.len();
    for keys in blocks {
        let start = sink.extra_keys.len();
        for key in keys.iter().flatten() {
            sink.extra_keys.push(extra_key(key)?);
        }
        sink.scratch.extra_ranges.push(start..sink.extra_keys.len());
    }
    Ok(first..sink.scratch.extra_ranges.len())
}

fn extra_key(owned: &OwnedExtraKey) -> Result<ExtraKey<'_>, RejectReason> {
    Ok(match owned {
        OwnedExtraKey::Text(text) => ExtraKey::Text(bounded(text)?),
        OwnedExtraKey::Bytes(bytes) if bytes.len() > MAX_NAME => return Err(RejectReason::NameTooLong),
        OwnedExtraKey::Bytes(bytes) => ExtraKey::Bytes(bytes),
        OwnedExtraKey::Integer(number) => ExtraKey::Integer(*number),
        OwnedExtraKey::Multimodal(id, offset) => ExtraKey::Multimodal { id: bounded(id)?, offset: *offset },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::{Profile, encode_batch};

    /// Events with everything that vLLM's newest shape can say.
    fn events() -> Vec<OwnedEvent> {
        let text = |text: &str| Some(text.to_owned());
        let stored = OwnedStored {
            block_hashes: vec![OwnedHash::Unsigned(7), OwnedHash::Signed(-7)],
            parent: Some(OwnedHash::Bytes((0..32).collect())),
            token_ids: vec![1, 2, 3, u32::MAX],
            block_size: 2,
            lora_id: Some(3),
            lora_name: text("adapter"),
            medium: text("GPU"),
            extra_keys: Some(vec![
                None,
                Some(vec![
                    OwnedExtraKey::Text("salt".into()),
                    OwnedExtraKey::Bytes(vec![1, 2]),
                    OwnedExtraKey::Integer(-1),
                    OwnedExtraKey::Multimodal("image".into(), -4),
                ]),
            ]),
            group: Some(1),
            spec_kind: text("sliding_window"),
            sliding_window: Some(128),
            locality: text("LOCAL"),
            ownership: text("pool"),
            session_id: text("session"),
            ..OwnedStored::default()
        };
        let removed = OwnedRemoved {
            block_hashes: vec![OwnedHash::Hex((0..32).collect())],
            medium: text("CPU"),
            group: Some(1),
            ..OwnedRemoved::default()
        };
        vec![OwnedEvent::Stored(stored), OwnedEvent::Removed(removed), OwnedEvent::Cleared]
    }

    #[test]
    fn a_call_is_what_a_message_would_have_been() {
        let events = events();
        let payload = encode_batch(Profile::Vllm0_32, 1.5, None, &events);
        let (mut by_call, mut by_message) = (Decoder::default(), Decoder::default());
        let assembled = by_call.assemble(1.5, &events).unwrap();
        let decoded = by_message.decode(&payload).unwrap();
        assert_eq!(format!("{assembled:?}"), format!("{decoded:?}"));
        let own = |batch: &Batch<'_, '_>| -> Vec<_> {
            batch.events.iter().filter_map(|event| OwnedEvent::from_decoded(batch, event)).collect()
        };
        assert_eq!(own(&assembled), events);
        // The buffers are empty again for the next.
        assert_eq!(own(&by_call.assemble(1.5, &events[..1]).unwrap()), events[..1]);
    }

    #[test]
    fn what_does_not_hold_together_is_refused() {
        let refused = |change: fn(&mut OwnedStored)| {
            let mut stored = OwnedStored {
                block_hashes: vec![OwnedHash::Unsigned(1)],
                token_ids: vec![1, 2],
                block_size: 2,
                ..OwnedStored::default()
            };
            change(&mut stored);
            Decoder::default().assemble(0.0, &[OwnedEvent::Stored(stored)]).unwrap_err()
        };
        assert_eq!(refused(|stored| stored.block_size = 0), RejectReason::BadBlockSize);
        assert_eq!(refused(|stored| stored.block_size = 3), RejectReason::TooFewTokens);
        assert_eq!(refused(|stored| stored.extra_keys = Some(vec![None; 2])), RejectReason::BadType);
        assert_eq!(refused(|stored| stored.parent = Some(OwnedHash::Bytes(vec![1]))), RejectReason::BadHash);
    }
}
