//! Three fleets under one workload: the first is routed to by asking the plane, the second round robin, the
//! third by a plain consumer of events.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Halt;
use super::fleet::Fleet;
use super::plane::{Agreement, Prediction, ServedPlane};
use super::router::{Believed, PlainRouter};
use super::routing::{Delivered, Ledger, choose};
use super::summary::Step;
use super::view::{View, Voice};
use super::workload::{Request, Workload};

/// Everything that the tour has.
pub(super) struct Tour {
    pub(super) plane: ServedPlane,
    pub(super) fleet: Fleet,
    /// The same engines again, with as much room, which no plane hears.
    pub(super) in_turn: Fleet,
    /// And once more, for somebody who goes by events as they come.
    pub(super) plain: PlainRouter,
    pub(super) ledger: Ledger,
    pub(super) steps: Vec<Step>,
    pub(super) view: View,
    pub(super) workload: Workload,
    /// Tokens that each engine had to compute.
    computed: Vec<u64>,
    /// Whose turn it is in the second fleet.
    turn: usize,
    /// The engine of which less is known than it holds, since a step that shows this.
    pub(super) known_in_part: Option<&'static str>,
    /// How often each engine was restarted.
    pub(super) restarts: Vec<u64>,
    /// The engine that served last: the plane may not have heard of it yet.
    unheard: Option<usize>,
    /// When the next request comes.
    due: Instant,
    stop: CancellationToken,
}

impl Tour {
    pub(super) fn new(
        plane: ServedPlane,
        [fleet, in_turn]: [Fleet; 2],
        plain: PlainRouter,
        workload: Workload,
        view: View,
        stop: CancellationToken,
    ) -> Self {
        let engines = fleet.engines.len();
        Self {
            plane,
            ledger: Ledger::new(engines),
            computed: vec![0; engines],
            restarts: vec![0; engines],
            fleet,
            in_turn,
            plain,
            steps: Vec::new(),
            view,
            workload,
            turn: 0,
            known_in_part: None,
            unheard: None,
            due: Instant::now(),
            stop,
        }
    }

    /// Routes requests as they come, until a moment: at least and at most this number.
    pub(super) async fn load(&mut self, until: Instant, least: usize, most: usize) -> Result<(), Halt> {
        self.due = Instant::now();
        let mut served = 0;
        while served < most && (served < least || Instant::now() < until) {
            let Some(request) = self.workload.next() else { break };
            // A late request is sent at once, and no wait goes beyond the end.
            self.due += request.after;
            let arrival = self.due.min(until);
            tokio::select! {
                () = self.stop.cancelled() => return Err(Halt::Stopped),
                () = tokio::time::sleep_until(arrival) => {}
            }
            self.route(&request).await?;
            self.view.progress(&self.ledger, || self.plain.phantoms());
            served += 1;
        }
        self.view.load(&self.ledger);
        Ok(())
    }

    /// Asks the plane where a request should go, runs it there, and enters what was promised and what was
    /// found.
    async fn route(&mut self, request: &Request) -> Result<(), Halt> {
        // A prediction is judged by what the engine holds. So the plane is asked when it has heard of the
        // last request.
        if let Some(last) = self.unheard.take() {
            self.plane.until_heard(&self.fleet.engines[last]).await?;
        }
        let answer = self.plane.ask(&request.prompt).await?;
        let prompt = request.prompt.len() as u64;
        let said: Vec<Option<&Prediction>> =
            self.fleet.engines.iter().map(|engine| answer.get(engine.name)).collect();
        let held: Vec<u64> = said.iter().map(|said| said.map_or(0, |said| said.tokens)).collect();
        let at = choose(prompt, &held, &self.computed);
        let predicted = said[at].cloned().unwrap_or(Prediction { tokens: 0, exact: false });
        let Request { prompt: ids, max_tokens, .. } = request;
        let Believed { predicted: believed, delivered: plain } = self.plain.route(ids, *max_tokens).await?;
        let (delivered, in_turn) = self.serve(at, request)?;
        self.ledger.enter_plain(prompt, believed, plain);
        self.ledger.enter(prompt, &predicted, delivered, in_turn);
        Ok(())
    }

    /// Runs made-up requests on one engine without asking anybody, on the same one of the third fleet, and on
    /// the second fleet round robin. They are not entered.
    pub(super) fn send_to(&mut self, engine: usize, requests: usize) -> anyhow::Result<()> {
        for _ in 0..requests {
            let request = self.workload.next_made_up();
            self.plain.serve(engine, &request.prompt, request.max_tokens)?;
            self.serve(engine, &request)?;
        }
        Ok(())
    }

    /// Runs a request on an engine of the first fleet and on the next one of the second.
    fn serve(&mut self, engine: usize, request: &Request) -> anyhow::Result<(Delivered, Delivered)> {
        let Request { prompt, max_tokens, .. } = request;
        let result = self.fleet.engines[engine].complete(prompt, *max_tokens)?;
        self.unheard = Some(engine);
        let tokens = result.cached_tokens as u64;
        self.computed[engine] += (prompt.len() as u64).saturating_sub(tokens);
        let delivered = Delivered { engine, tokens };
        let engine = self.turn % self.in_turn.engines.len();
        self.turn += 1;
        let tokens = self.in_turn.engines[engine].complete(prompt, *max_tokens)?.cached_tokens as u64;
        self.workload.replied(request, &result.output);
        Ok((delivered, Delivered { engine, tokens }))
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, name: &'static str, title: &str) {
        let number = self.steps.len() + 1;
        self.view.title(number, title);
        self.steps.push(Step::new(name, title));
    }

    /// Adds to the step.
    pub(super) fn tell(&mut self, voice: Voice, words: impl Into<String>) {
        let words = words.into();
        self.view.tell(voice, &words);
        if let Some(step) = self.steps.last_mut() {
            step.tell(voice, words);
        }
    }

    /// Adds what the plane's timeline says of an engine since a remark, something of a topic among it, and
    /// returns that.
    pub(super) async fn tell_remarks(
        &mut self,
        since: u64,
        engine: usize,
        topic: &str,
    ) -> Result<String, Halt> {
        let engine = &self.fleet.engines[engine];
        let words = self.plane.remarks_since(since, engine, topic).await?.join("; ");
        self.tell(Voice::Plane, format!("{}: {words}", engine.name));
        Ok(words)
    }

    /// Ends the step: compares what the plane holds with what every engine holds, once it has heard
    /// everything.
    pub(super) async fn check(&mut self) -> Result<(), Halt> {
        let (mut equal, mut lower, mut blocks) = (0, Vec::new(), 0);
        for engine in &self.fleet.engines {
            self.plane.until_heard(engine).await?;
            let compared = self.plane.compare(engine).await?;
            blocks += compared.blocks;
            match compared.agreement {
                Agreement::Equal => equal += 1,
                Agreement::Lower if self.known_in_part == Some(compared.engine) => lower.push(format!(
                    "{}: {} of its {} blocks, no phantoms, reported as {}",
                    compared.engine, compared.blocks, compared.engine_blocks, compared.trust
                )),
                Agreement::Lower | Agreement::Different => {
                    return Err(Halt::Failed(anyhow::anyhow!(
                        "{}: kvplane holds {} blocks and says {}, the engine holds {}, and they differ",
                        compared.engine,
                        compared.blocks,
                        compared.trust,
                        compared.engine_blocks
                    )));
                }
            }
        }
        let engines = self.fleet.engines.len();
        self.tell(
            Voice::Checked,
            format!("{equal} of {engines} engines equal block by block ({blocks} blocks)"),
        );
        for words in lower {
            self.tell(Voice::Checked, words);
        }
        if let Some(step) = self.steps.last_mut() {
            step.met = true;
            self.view.survived();
        }
        Ok(())
    }

    /// Whether nobody has said that it is enough.
    pub(super) fn goes_on(&self) -> Result<(), Halt> {
        if self.stop.is_cancelled() { Err(Halt::Stopped) } else { Ok(()) }
    }

    /// Waits for Enter, or until it is enough.
    pub(super) async fn pause(&mut self) -> Result<(), Halt> {
        eprintln!("\n  Press Enter to continue.");
        let mut line = String::new();
        let read = tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut line));
        tokio::select! {
            () = self.stop.cancelled() => Err(Halt::Stopped),
            // Where nobody can press Enter, nobody is waited for.
            _ = read => Ok(()),
        }
    }

    /// Goes on with the load until it is enough.
    pub(super) async fn stay(&mut self) -> Result<(), Halt> {
        const A_DAY: Duration = Duration::from_hours(24);
        self.load(Instant::now() + A_DAY, 0, usize::MAX).await?;
        // A trace has ended, or a day.
        self.stop.cancelled().await;
        Ok(())
    }
}
