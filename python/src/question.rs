//! Questions and answers: who holds how much of a prompt.

use std::collections::BTreeMap;

use kvplane_catalog::{Answer as Found, GroupLength, Match as FoundMatch, Question, age_ms};
use kvplane_core::{MultimodalItem, Tier};
use kvplane_wire::OwnedHash;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::arguments::{self, Fields};
use crate::errors::{Argument, bad_type, bad_value};

const DETAILS: [&str; 12] = [
    "lora_name",
    "lora_id",
    "cache_salt",
    "extra_keys",
    "multimodal",
    "block_hashes",
    "chained",
    "block_size",
    "groups",
    "limit",
    "min_tokens",
    "all",
];

/// The question in the arguments of `query`.
pub(crate) fn question(
    model: &Bound<'_, PyAny>,
    token_ids: Option<&Bound<'_, PyAny>>,
    details: Option<&Bound<'_, PyDict>>,
) -> PyResult<Question> {
    let fields = Fields { within: "", values: details };
    fields.only(&DETAILS)?;
    let mut question = Question {
        model: Some(arguments::text(Argument::new("model"), model)?),
        lora_name: fields.text("lora_name")?,
        lora_id: fields.signed_64("lora_id")?,
        cache_salt: fields.text("cache_salt")?,
        block_size: fields.unsigned_32("block_size")?,
        multimodal: fields.get("multimodal", items)?,
        chained: fields.get("chained", arguments::truth)?,
        groups: fields.get("groups", arguments::truth)?,
        limit: fields.unsigned_32("limit")?,
        min_tokens: fields.get("min_tokens", arguments::unsigned_64)?,
        all: fields.get("all", arguments::truth)?,
        ..Question::default()
    };
    let keys = fields.get("extra_keys", arguments::extra_keys)?;
    question.extra_keys = keys.map(|lists| lists.into_iter().map(Option::unwrap_or_default).collect());
    let token_ids = token_ids.filter(|ids| !ids.is_none());
    if let Some(ids) = token_ids {
        question.token_ids = Some(tokens(Argument::new("token_ids"), ids)?);
    }
    question.block_hashes = fields.get("block_hashes", hashes)?;
    Ok(question)
}

pub(crate) fn tokens(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let mut ids = Vec::new();
    arguments::elements(argument, value, "a sequence of ints", |at, element| {
        ids.push(arguments::unsigned_32(argument.element(at), element)?);
        Ok(())
    })?;
    Ok(ids)
}

pub(crate) fn hashes(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let hashes = arguments::hashes(argument, value)?.into_iter().enumerate();
    let bits = hashes.map(|(at, hash)| match hash {
        OwnedHash::Unsigned(bits) => Ok(bits),
        OwnedHash::Signed(bits) => Ok(bits.cast_unsigned()),
        OwnedHash::Bytes(_) | OwnedHash::Hex(_) => Err(bad_value(
            argument.element(at),
            "must be an int of 64 bits: a hash of content, not an engine's",
        )),
    });
    bits.collect()
}

/// Items as tuples of id, offset and length.
fn items(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<MultimodalItem>> {
    let mut items = Vec::new();
    arguments::elements(argument, value, "a sequence of (id, offset, length)", |at, element| {
        let argument = argument.element(at);
        let item = element.cast::<PyTuple>().ok().filter(|item| item.len() == 3);
        let item = item.ok_or_else(|| bad_type(argument, "a tuple of id, offset and length", element))?;
        items.push(MultimodalItem {
            id: arguments::text(argument, &item.get_item(0)?)?.into(),
            offset: arguments::unsigned_64(argument, &item.get_item(1)?)?,
            length: arguments::unsigned_64(argument, &item.get_item(2)?)?,
        });
        Ok(())
    })?;
    Ok(items)
}

/// How much of a prompt is held.
#[derive(Debug, Clone, Copy)]
struct Length {
    blocks: u32,
    tokens: u64,
    /// Tokens by tier, each with everything warmer.
    tiers: [(Tier, u64); 4],
}

impl Length {
    fn of(found: &FoundMatch<'_>) -> Self {
        let tiers = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];
        Self {
            blocks: found.blocks(),
            tokens: found.tokens(),
            tiers: tiers.map(|tier| (tier, found.tokens_in(tier))),
        }
    }

    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (tier, tokens) in self.tiers {
            dict.set_item(tier.as_str(), tokens)?;
        }
        Ok(dict)
    }

    fn write(&self, dict: &Bound<'_, PyDict>) -> PyResult<()> {
        dict.set_item("blocks", self.blocks)?;
        dict.set_item("tokens", self.tokens)?;
        dict.set_item("tiers", self.tiers(dict.py())?)
    }

    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        self.write(&dict)?;
        Ok(dict)
    }
}

/// How far one group beside the main one could go on, if it were the only one.
#[derive(Debug)]
struct Side {
    number: Option<u32>,
    kind: &'static str,
    length: Length,
}

/// A stream that is credited, and how much of the prompt it holds.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct Match {
    engine: String,
    rank: u32,
    epoch: u64,
    trust: &'static str,
    reason: Option<&'static str>,
    age_ms: Option<u64>,
    block_size: Option<u32>,
    length: Length,
    cached_tokens: Option<u64>,
    note: Option<&'static str>,
    main: Option<Length>,
    groups: Option<Vec<Side>>,
}

/// A stream that is not credited, and why.
#[pyclass(frozen, get_all, module = "kvplane")]
pub(crate) struct NotCredited {
    engine: String,
    rank: u32,
    epoch: u64,
    trust: &'static str,
    reason: &'static str,
    continuity: &'static str,
    age_ms: Option<u64>,
}

/// An answer, read without the interpreter's lock.
pub(crate) struct Read {
    matches: Vec<Match>,
    best: usize,
    trust: &'static str,
    not_credited: Vec<NotCredited>,
    counts: Counts,
}

/// How many streams could have answered, listed or not.
struct Counts {
    streams: kvplane_catalog::Counts,
    not_credited_by_reason: BTreeMap<&'static str, usize>,
    shorter_than_block: usize,
}

impl Counts {
    fn of(found: &Found<'_>) -> Self {
        Self {
            streams: found.counts,
            not_credited_by_reason: found.refusals(),
            shorter_than_block: found.shorter_than_block(),
        }
    }

    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("holders", self.streams.holders)?;
        dict.set_item("best", self.streams.best)?;
        dict.set_item("empty", self.streams.empty)?;
        dict.set_item("not_credited", self.streams.not_credited)?;
        dict.set_item("not_credited_by_reason", &self.not_credited_by_reason)?;
        dict.set_item("shorter_than_block", self.shorter_than_block)?;
        Ok(dict)
    }
}

/// Who holds how much of a prompt, and what that is worth.
#[pyclass(frozen, get_all, module = "kvplane")]
pub(crate) struct Answer {
    matches: Py<PyTuple>,
    best: Py<PyTuple>,
    trust: &'static str,
    not_credited: Py<PyTuple>,
    counts: Py<PyDict>,
}

/// Reads an answer. `name` gives the name of a match's engine.
pub(crate) fn read(found: &Found<'_>, groups: bool, name: impl Fn(&FoundMatch<'_>) -> String) -> Read {
    let group = |found: &FoundMatch<'_>, side: &GroupLength| Side {
        number: side.group,
        kind: side.kind.as_str(),
        length: Length::of(&found.with_depths(side.depths)),
    };
    let matches = found.matches().map(|found| Match {
        engine: name(&found),
        rank: found.member.id.rank,
        epoch: found.view.epoch.as_u64(),
        trust: found.view.trust.as_str(),
        reason: found.view.reason.map(kvplane_core::Reason::as_str),
        age_ms: found.age.map(age_ms),
        block_size: found.block_size,
        length: Length::of(&found),
        cached_tokens: found.cached_tokens,
        note: found.note().map(kvplane_catalog::Note::as_str),
        main: found.reported_main(groups).as_ref().map(Length::of),
        groups: groups.then(|| found.sides().iter().map(|side| group(&found, side)).collect()),
    });
    let not_credited = found.not_credited().map(|found| NotCredited {
        engine: name(&found),
        rank: found.member.id.rank,
        epoch: found.view.epoch.as_u64(),
        trust: found.view.trust.as_str(),
        reason: found.refusal(),
        continuity: found.view.continuity.as_str(),
        age_ms: found.age.map(age_ms),
    });
    Read {
        matches: matches.collect(),
        best: found.best().len(),
        trust: found.trust.as_str(),
        not_credited: not_credited.collect(),
        counts: Counts::of(found),
    }
}

impl Answer {
    pub(crate) fn new(py: Python<'_>, read: Read) -> PyResult<Self> {
        let matches: Vec<_> =
            read.matches.into_iter().map(|one| Py::new(py, one)).collect::<PyResult<_>>()?;
        let not_credited: Vec<_> =
            read.not_credited.into_iter().map(|one| Py::new(py, one)).collect::<PyResult<_>>()?;
        Ok(Self {
            best: PyTuple::new(py, &matches[..read.best])?.unbind(),
            matches: PyTuple::new(py, matches)?.unbind(),
            trust: read.trust,
            not_credited: PyTuple::new(py, not_credited)?.unbind(),
            counts: read.counts.as_dict(py)?.unbind(),
        })
    }
}

#[pymethods]
impl Answer {
    /// The same as `POST /v1/query` would answer.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (matches, best, not_credited) = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
        for found in self.matches.bind(py).iter() {
            matches.append(found.cast::<Match>()?.get().as_dict(py)?)?;
        }
        for found in self.best.bind(py).iter() {
            best.append(found.cast::<Match>()?.get().name(py)?)?;
        }
        for found in self.not_credited.bind(py).iter() {
            not_credited.append(found.cast::<NotCredited>()?.get().as_dict(py)?)?;
        }
        let dict = PyDict::new(py);
        dict.set_item("matches", matches)?;
        dict.set_item("best", best)?;
        dict.set_item("trust", self.trust)?;
        dict.set_item("not_credited", not_credited)?;
        dict.set_item("counts", &self.counts)?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let best = self.best.bind(py).repr()?;
        let others = self.counts.bind(py).as_any().get_item("not_credited")?;
        Ok(format!("<kvplane.Answer {}, best {best}, {others} not credited>", self.trust))
    }
}

#[pymethods]
impl Match {
    /// The engine's name.
    #[getter]
    fn engine(&self) -> &str {
        &self.engine
    }

    /// Its data-parallel rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// The publisher's life.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What this is worth.
    #[getter]
    fn trust(&self) -> &'static str {
        self.trust
    }

    /// Why it is not exact.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// How old the proof is that the engine is there, milliseconds.
    #[getter]
    fn age_ms(&self) -> Option<u64> {
        self.age_ms
    }

    /// Tokens per block.
    #[getter]
    fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// Blocks that the engine can go on from, in any tier that it reaches by itself.
    #[getter]
    fn blocks(&self) -> u32 {
        self.length.blocks
    }

    /// The same in tokens.
    #[getter]
    fn tokens(&self) -> u64 {
        self.length.tokens
    }

    /// Tokens by tier, each with everything warmer.
    #[getter]
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.length.tiers(py)
    }

    /// What the engine is expected to report as cached tokens for exactly this prompt; `None` if hashes were
    /// given.
    #[getter]
    fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens
    }

    /// `prompt_shorter_than_block` if the prompt does not fill one block of the stream.
    #[getter]
    fn note(&self) -> Option<&'static str> {
        self.note
    }

    /// What the main group holds, where that is not what counts.
    #[getter]
    fn main<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.main.as_ref().map(|main| main.as_dict(py)).transpose()
    }

    /// How far each other group could go on, where that was asked for.
    #[getter]
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let list = PyList::empty(py);
        for Side { number, kind, length } in groups {
            let dict = PyDict::new(py);
            dict.set_item("group", number)?;
            dict.set_item("kind", kind)?;
            length.write(&dict)?;
            list.append(dict)?;
        }
        Ok(Some(list))
    }

    fn __repr__(&self) -> String {
        format!(
            "<kvplane.Match {}/{}, {} tokens, {}>",
            self.engine, self.rank, self.length.tokens, self.trust
        )
    }
}

impl Match {
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stream(py, &self.engine, self.rank)
    }

    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = self.name(py)?;
        dict.set_item("epoch", self.epoch)?;
        dict.set_item("trust", self.trust)?;
        dict.set_item("reason", self.reason)?;
        dict.set_item("age_ms", self.age_ms)?;
        dict.set_item("block_size", self.block_size)?;
        self.length.write(&dict)?;
        if let Some(cached_tokens) = self.cached_tokens {
            dict.set_item("cached_tokens", cached_tokens)?;
        }
        if let Some(note) = self.note {
            dict.set_item("note", note)?;
        }
        if let Some(main) = &self.main {
            dict.set_item("main", main.as_dict(py)?)?;
        }
        if let Some(groups) = self.groups(py)? {
            dict.set_item("groups", groups)?;
        }
        Ok(dict)
    }
}

#[pymethods]
impl NotCredited {
    fn __repr__(&self) -> String {
        format!("<kvplane.NotCredited {}/{}, {}>", self.engine, self.rank, self.reason)
    }
}

impl NotCredited {
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = stream(py, &self.engine, self.rank)?;
        dict.set_item("epoch", self.epoch)?;
        dict.set_item("trust", self.trust)?;
        dict.set_item("reason", self.reason)?;
        dict.set_item("continuity", self.continuity)?;
        dict.set_item("age_ms", self.age_ms)?;
        Ok(dict)
    }
}

/// Which stream.
fn stream<'py>(py: Python<'py>, engine: &str, rank: u32) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("engine", engine)?;
    dict.set_item("rank", rank)?;
    Ok(dict)
}

/// Trust levels by their names.
pub(crate) fn credit(value: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<kvplane_core::Trust>> {
    let Some(value) = value else { return Ok(kvplane_embed::DEFAULT_CREDIT.to_vec()) };
    let argument = Argument::new("credit");
    let mut levels = Vec::new();
    arguments::members(argument, value, "a sequence of trust levels", |at, element| {
        let argument = argument.element(at);
        let name = arguments::text(argument, element)?;
        let level = kvplane_core::Trust::ALL.into_iter().find(|level| level.as_str() == name);
        levels.push(
            level
                .ok_or_else(|| bad_value(argument, "must be 'exact', 'lower', 'unverified' or 'unsound'"))?,
        );
        Ok(())
    })?;
    Ok(levels)
}
