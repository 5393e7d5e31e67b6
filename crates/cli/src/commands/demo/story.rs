//! The story, step by step: what is done to an engine, what a plain consumer believes then, and what the
//! plane says.

use anyhow::{Context as _, anyhow};
use http::Method;
use kvplane_core::{EngineKind, Trust};
use kvplane_ingest::StreamStatus;
use kvplane_sim::trtllm::TrtHandle;
use kvplane_sim::{Conduct, Fault, Restart, SimHandle};
use kvplane_socket::Sockets;
use kvplane_transport::{HttpClient, HttpQuestion, Sent};

use super::Halt;
use super::fleet::Sim;
use super::plain::{Belief, PlainConsumer};
use super::plane::{FlushVerdict, PATIENCE};
use super::tour::Tour;
use super::view::Voice;

/// Requests that each engine has served before the plane comes.
const EARLIER: usize = 12;
/// Frames that are lost, and requests that come after them.
const LOST_FRAMES: u32 = 3;
const REQUESTS: usize = 6;
/// How far the sequence of a restarted engine is ahead of the old one when it is first heard.
const AHEAD: u64 = 5;
/// How often somebody tries to be faster than the plane with a drain.
const ATTEMPTS: usize = 200;
/// How long a flush may take to show on an engine's stream, in seconds: far beyond anything that it takes,
/// and less than its caller waits for an answer.
const PROOF_S: u64 = 25;
/// The same for the liar, of which nothing will show: the tour waits for as long.
const LIAR_PROOF_S: u64 = 2;
/// Bytes of an engine's own answer at most.
const ANSWER_BYTES: usize = 4 << 10;

/// The story's steps, in their order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    LateJoin,
    LostFrames,
    Overtaken,
    StolenDrain,
    Flush,
}

impl Act {
    pub(super) const ALL: [Self; 5] =
        [Self::LateJoin, Self::LostFrames, Self::Overtaken, Self::StolenDrain, Self::Flush];
}

/// Who plays in it, besides the plane and the engines.
pub(super) struct Story {
    sockets: Sockets,
    /// A plain consumer of the vLLM, as soon as there is one.
    consumer: Option<PlainConsumer>,
}

impl Story {
    pub(super) fn new() -> anyhow::Result<Self> {
        let sockets = Sockets::start(&kvplane_socket::Options::default());
        Ok(Self { sockets: sockets.context("cannot start the plain consumer")?, consumer: None })
    }

    /// Ends the plain consumer. Blocks.
    pub(super) fn end(self) {
        drop(self.consumer);
        self.sockets.shutdown();
    }

    pub(super) async fn play(&mut self, act: Act, tour: &mut Tour) -> Result<(), Halt> {
        match act {
            Act::LateJoin => self.late_join(tour).await?,
            Act::LostFrames => self.lost_frames(tour).await?,
            Act::Overtaken => self.overtaken(tour).await?,
            Act::StolenDrain => stolen_drain(tour).await?,
            Act::Flush => flush(tour).await?,
        }
        tour.check().await
    }

    /// Engines that have run for a while before anybody listens.
    async fn late_join(&mut self, tour: &mut Tour) -> Result<(), Halt> {
        tour.begin("late_join", "a late join");
        let engines = tour.fleet.engines.len();
        for _ in 0..EARLIER {
            for engine in 0..engines {
                tour.send_to(engine, 1)?;
            }
        }
        tour.tell(
            Voice::Done,
            format!(
                "{engines} engines serve {} requests before kvplane and a plain event consumer connect",
                EARLIER * engines
            ),
        );
        let before = tour.plane.last_remark();
        for engine in &tour.fleet.engines {
            tour.plane.add(engine).await?;
        }
        let vllm = tour.fleet.position(EngineKind::Vllm);
        let events = published(tour, vllm)?.event_endpoints().into_iter().next().unwrap_or_default();
        let consumer =
            PlainConsumer::start(&self.sockets, &events).context("cannot start the plain consumer")?;
        for engine in &tour.fleet.engines {
            tour.plane.until_heard(engine).await?;
        }
        tour.plain.join()?;
        let connected = |_: &StreamStatus| consumer.is_connected() && tour.plain.is_connected();
        tour.plane.until(&tour.fleet.engines[vllm], "the plain consumers are connected", connected).await?;
        self.consumer = Some(consumer);
        self.tell_belief(tour, vllm, None);
        for engine in 0..engines {
            tour.tell_remarks(before, engine, "continuity").await?;
        }
        Ok(())
    }

    /// Frames that the network swallows.
    async fn lost_frames(&mut self, tour: &mut Tour) -> Result<(), Halt> {
        tour.begin("lost_frames", "lost frames");
        let vllm = tour.fleet.position(EngineKind::Vllm);
        let gaps = status(tour, vllm).await?.counters.gaps;
        let (before, believed) = (tour.plane.last_remark(), self.belief(tour, vllm));
        published(tour, vllm)?.fault(None, Fault::Drop(LOST_FRAMES));
        if let Sim::Published(other) = &tour.plain.fleet.engines[vllm].sim {
            other.fault(None, Fault::Drop(LOST_FRAMES));
        }
        tour.send_to(vllm, REQUESTS)?;
        tour.tell(Voice::Done, format!("the network drops {LOST_FRAMES} event frames of vllm-0"));
        let engine = &tour.fleet.engines[vllm];
        let noticed = |status: &StreamStatus| status.counters.gaps > gaps;
        tour.plane.until(engine, "the gap is noticed", noticed).await?;
        let heard = tour.plane.until_heard(engine).await?;
        if heard.counters.gaps_unfilled > 0 || heard.trust.level() != Trust::Exact {
            let (unfilled, trust) = (heard.counters.gaps_unfilled, heard.trust.level());
            return Err(Halt::Failed(anyhow!("{unfilled} gaps of vllm-0 are not filled, and it is {trust}")));
        }
        self.tell_belief(tour, vllm, believed.as_ref());
        let said = tour.tell_remarks(before, vllm, "gap").await?;
        if !said.contains("gap repaired") {
            return Err(Halt::Failed(anyhow!("the timeline does not say that the gap is repaired: {said}")));
        }
        Ok(())
    }

    /// A restart that no number gives away.
    async fn overtaken(&mut self, tour: &mut Tour) -> Result<(), Halt> {
        tour.begin("overtaken", "a crash that no sequence number shows");
        let vllm = tour.fleet.position(EngineKind::Vllm);
        let old = status(tour, vllm).await?;
        let (before, believed) = (tour.plane.last_remark(), self.belief(tour, vllm));
        let last = old.engine_sequence.unwrap_or(0);
        let first_sequence = last + 1 + AHEAD;
        let restart = Fault::Restart(Restart { first_sequence, same_content: false });
        published(tour, vllm)?.fault(None, restart);
        tour.restarts[vllm] += 1;
        for other in [&tour.in_turn, &tour.plain.fleet] {
            if let Sim::Published(other) = &other.engines[vllm].sim {
                other.fault(None, restart);
            }
        }
        tour.send_to(vllm, REQUESTS)?;
        tour.tell(
            Voice::Done,
            format!(
                "vllm-0 crashes and restarts with an empty cache; its next sequence is {first_sequence} after {last}, so no number goes back"
            ),
        );
        let engine = &tour.fleet.engines[vllm];
        let proven = |status: &StreamStatus| {
            status.counters.restarts > old.counters.restarts && status.epoch > old.epoch
        };
        tour.plane.until(engine, "the restart is proven", proven).await?;
        tour.plane.until_heard(engine).await?;
        self.tell_belief(tour, vllm, believed.as_ref());
        tour.tell_remarks(before, vllm, "epoch").await?;
        Ok(())
    }

    /// What the plain consumer believes of an engine by now.
    fn belief(&self, tour: &Tour, engine: usize) -> Option<Belief> {
        let truth = tour.fleet.engines[engine].held();
        self.consumer.as_ref().map(|consumer| consumer.belief(&truth))
    }

    /// Adds that, beside what it believed before.
    fn tell_belief(&self, tour: &mut Tour, engine: usize, before: Option<&Belief>) {
        let Some(belief) = self.belief(tour, engine) else { return };
        tour.tell(Voice::Plain, belief.words(tour.fleet.engines[engine].name, before));
    }
}

/// A second reader of a buffer that is emptied by reading it.
async fn stolen_drain(tour: &mut Tour) -> Result<(), Halt> {
    tour.begin("stolen_drain", "a stolen drain");
    let trtllm = tour.fleet.position(EngineKind::Trtllm);
    let lost = status(tour, trtllm).await?.counters.gaps_unfilled;
    let before = tour.plane.last_remark();
    let mut stolen = Vec::new();
    // The plane drains as well: somebody has to be faster once.
    for _ in 0..ATTEMPTS {
        tour.send_to(trtllm, 1)?;
        stolen = drained(tour, trtllm)?.drain();
        if !stolen.is_empty() {
            break;
        }
    }
    if stolen.is_empty() {
        return Err(Halt::Failed(anyhow!(
            "the second reader was never faster than kvplane: no event was stolen"
        )));
    }
    tour.tell(
        Voice::Done,
        format!(
            "a second reader drains {} events of trtllm-0; they are gone for everybody else",
            stolen.len()
        ),
    );
    let engine = &tour.fleet.engines[trtllm];
    let believed = Belief::of_drained(&stolen, &engine.held()).words(engine.name, None);
    tour.tell(Voice::Plain, format!("the second reader {believed}"));
    tour.send_to(trtllm, REQUESTS)?;
    let engine = &tour.fleet.engines[trtllm];
    let noticed = |status: &StreamStatus| status.counters.gaps_unfilled > lost;
    tour.plane.until(engine, "the loss is noticed", noticed).await?;
    tour.plane.until_heard(engine).await?;
    // It cannot be flushed either: from now on what is known of it is less than it holds.
    tour.known_in_part = Some(engine.name);
    tour.tell_remarks(before, trtllm, "gap").await?;
    Ok(())
}

/// A flush of the whole fleet, of which one engine says that it did it, and did not.
async fn flush(tour: &mut Tour) -> Result<(), Halt> {
    tour.begin("flush", "a flush with proof, and an engine that lies");
    let sglang = tour.fleet.position(EngineKind::Sglang);
    let liar = tour.fleet.engines[sglang].name;
    let before = tour.plane.last_remark();
    published(tour, sglang)?.conduct(Conduct { no_effect: true, ..Conduct::default() });
    let outcome = asked_to_flush(tour, sglang).await?;
    tour.tell(
        Voice::Done,
        format!("POST /flush_cache to all engines; {liar} answers OK and keeps everything"),
    );
    let kept = tour.fleet.engines[sglang].held().len();
    tour.tell(Voice::Plain, format!("asks {liar} itself: {outcome}; it still holds {kept} blocks"));
    let names = tour.fleet.engines.iter().map(|engine| engine.name);
    let honest: Vec<&str> = names.filter(|name| *name != liar).collect();
    let mut verdicts = tour.plane.flush(&honest, PROOF_S).await?;
    verdicts.extend(tour.plane.flush(&[liar], LIAR_PROOF_S).await?);
    verdicts.sort_by(|one, two| one.engine.cmp(&two.engine));
    published(tour, sglang)?.conduct(Conduct::default());
    for engine in tour.in_turn.engines.iter().chain(&tour.plain.fleet.engines) {
        engine.flush();
    }
    tell_verdicts(tour, &verdicts);
    for engine in &tour.fleet.engines {
        // TensorRT-LLM has no such call, and the plane says so.
        let expected = match engine.kind {
            EngineKind::Sglang => "timeout",
            EngineKind::Trtllm => "unsupported",
            _ => "proven",
        };
        expect_verdict(&verdicts, engine.name, expected)?;
    }
    tour.tell_remarks(before, sglang, "flush").await?;
    tour.tell(Voice::Done, format!("{liar} is flushed again, and obeys"));
    let again = tour.plane.flush(&[liar], PROOF_S).await?;
    tell_verdicts(tour, &again);
    expect_verdict(&again, liar, "proven")?;
    let engine = &tour.fleet.engines[sglang];
    let exact = |status: &StreamStatus| status.trust.level() == Trust::Exact;
    tour.plane.until(engine, "what it holds is known exactly again", exact).await?;
    Ok(())
}

/// Asks an engine itself to flush, as somebody does who goes by its answer, which is returned.
async fn asked_to_flush(tour: &Tour, engine: usize) -> anyhow::Result<String> {
    let address = published(tour, engine)?.http_address().context("the simulated engine has no HTTP")?;
    let base = format!("http://{address}");
    let question = HttpQuestion { method: Method::POST, ..HttpQuestion::get(&base, "/flush_cache") };
    let answer = HttpClient::new().ask(question, ANSWER_BYTES, PATIENCE, &Sent::default()).await;
    let (status, body) = answer.context("the engine's /flush_cache")?;
    let body = String::from_utf8_lossy(&body);
    Ok(format!("{status}, {:?}", body.lines().next().unwrap_or_default()))
}

/// Fails unless there is this one verdict of an engine, and no other.
fn expect_verdict(verdicts: &[FlushVerdict], name: &str, expected: &str) -> anyhow::Result<()> {
    let its: Vec<_> = verdicts.iter().filter(|verdict| verdict.engine == name).collect();
    match its[..] {
        [FlushVerdict { verdict, .. }] if verdict == expected => Ok(()),
        [FlushVerdict { verdict, why, .. }] => {
            Err(anyhow!("the flush of {name} is {verdict} ({why}), not {expected}"))
        }
        _ => Err(anyhow!("the flush of {name} has {} verdicts, and not one", its.len())),
    }
}

fn tell_verdicts(tour: &mut Tour, verdicts: &[FlushVerdict]) {
    for FlushVerdict { engine, verdict, why } in verdicts {
        tour.tell(Voice::Plane, format!("{engine}: {verdict}: {why}"));
    }
}

/// How an engine's stream stands when everything is heard.
async fn status(tour: &Tour, engine: usize) -> Result<StreamStatus, Halt> {
    tour.plane.until_heard(&tour.fleet.engines[engine]).await
}

fn published(tour: &Tour, engine: usize) -> anyhow::Result<&SimHandle> {
    let engine = &tour.fleet.engines[engine];
    match &engine.sim {
        Sim::Published(sim) => Ok(sim),
        _ => Err(anyhow!("{} does not publish", engine.name)),
    }
}

fn drained(tour: &Tour, engine: usize) -> anyhow::Result<&TrtHandle> {
    let engine = &tour.fleet.engines[engine];
    match &engine.sim {
        Sim::Drained(sim) => Ok(sim),
        _ => Err(anyhow!("{} is not drained", engine.name)),
    }
}
