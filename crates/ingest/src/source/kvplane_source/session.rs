//! Following another plane: subscribes, feeds the streams, and comes back.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{Fuse, FusedFuture as _, FutureExt as _};
use kvplane_core::{Backoff, Cursor, EngineId, LinkTrouble, PlaneId, StateDigest, StreamId};
use kvplane_proto::Bearer;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use kvplane_stream::{Misfit, Recorder};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tonic::Streaming;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tracing::{debug, error, info, warn};

use super::convert;
use super::member::Member;
use super::roster::{Roster, goes_in_circles};
use super::spec::LinkSpec;
use super::status::LinkState;
use crate::chronicle::{Mood, Said};
use crate::feeder::Feeder;
use crate::plane::Plane;
use crate::token_file::TokenFileError;

/// How long the other plane may take to accept a connection, and to answer a question.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often a quiet connection is tested, and how long the answer may take: a plane whose machine vanished
/// says nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(5);
/// Waits between attempts: the first, and the longest. A session that lasted longer than that counts as
/// sound.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Between attempts that can hardly have another outcome: a loop, an engine that is not there.
const SLOW_WAIT: Duration = Duration::from_secs(30);
/// How often the other plane is asked for its engines while it is followed. What it sends tells most of it
/// sooner.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How often the other plane is asked for the ages of its proofs within `max_silence`: the age here is at
/// most that of the other plane and the time between two questions, so that planes in a row stay within the
/// bound.
const PULSES: u32 = 8;
const SHORTEST_PULSE: Duration = Duration::from_millis(20);
/// How often streams look at the time.
const TICK: Duration = Duration::from_millis(100);
/// What may be on its way: enough for a fast connection to a far site.
const WINDOW: u32 = 8 << 20;
/// Chunks of a snapshot stay below 1 MiB; a batch is as large as the engine made it.
const MAX_MESSAGE: usize = 256 << 20;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("{}", reason(.0))]
    Status(#[from] tonic::Status),
    #[error(transparent)]
    Token(#[from] TokenFileError),
    #[error("it did not answer in time")]
    Silent,
    #[error("it ended the subscription")]
    Over,
    #[error("it is this plane itself")]
    Itself,
    #[error("it has no such engine")]
    Nothing,
    #[error("stream {0}: {1}")]
    Misfit(StreamId, Misfit),
    #[error("other streams are to be followed")]
    Again,
    #[error("this plane has ended")]
    PlaneGone,
}

impl End {
    /// What status and metrics show.
    fn trouble(&self) -> LinkTrouble {
        match self {
            Self::Status(status) if is_refusal(status) => LinkTrouble::Refused,
            Self::Token(_) => LinkTrouble::Refused,
            Self::Status(_) | Self::Silent | Self::Over | Self::PlaneGone => LinkTrouble::Unreached,
            Self::Itself => LinkTrouble::Loop,
            Self::Nothing => LinkTrouble::NotFound,
            Self::Misfit(..) => LinkTrouble::Misfit,
            Self::Again => LinkTrouble::Resubscribing,
        }
    }
}

/// Whether the other plane wants another token, or another role.
fn is_refusal(status: &tonic::Status) -> bool {
    matches!(status.code(), tonic::Code::Unauthenticated | tonic::Code::PermissionDenied)
}

/// Everything that a link does.
pub(super) struct Session {
    link: EngineId,
    spec: LinkSpec,
    plane: Weak<Plane>,
    state: Arc<LinkState>,
    channel: Channel,
    client: Client,
    roster: Roster,
    /// The other plane sends what follows.
    subscribed: bool,
    /// Streams that are sent and not wanted.
    ignored: HashSet<StreamId>,
    /// Why it was not followed when it was last tried; nothing once it is.
    failing: Option<String>,
    /// Receives ticks.
    timed: Arc<Mutex<Vec<Feeder>>>,
}

type Client = PlaneClient<InterceptedService<Channel, Bearer>>;

fn client(channel: &Channel, bearer: Bearer) -> Client {
    PlaneClient::with_interceptor(channel.clone(), bearer).max_decoding_message_size(MAX_MESSAGE)
}

impl Session {
    pub(super) fn new(
        link: EngineId,
        spec: LinkSpec,
        endpoint: &Endpoint,
        plane: Weak<Plane>,
        state: Arc<LinkState>,
        runtime: Handle,
    ) -> Self {
        let endpoint = endpoint
            .clone()
            .connect_timeout(ANSWER_WITHIN)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_WITHIN)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_lazy();
        let roster = Roster::new(link.clone(), spec.clone(), state.clone(), runtime);
        Self {
            client: client(&channel, Bearer::default()),
            channel,
            roster,
            link,
            spec,
            plane,
            state,
            subscribed: false,
            ignored: HashSet::new(),
            failing: None,
            timed: Arc::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let timed = self.timed.clone();
        kvplane_runtime::spawn("link ticks", async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let feeders = timed.lock().clone();
                for feeder in feeders {
                    feeder.tell(Recorder::tick);
                }
            }
        });
        let mut backoff = Backoff::new(SHORTEST_WAIT, LONGEST_WAIT);
        loop {
            let begun = Instant::now();
            let Err(end) = self.session().await;
            if matches!(end, End::PlaneGone) {
                return;
            }
            self.ended(&end);
            if begun.elapsed() > LONGEST_WAIT {
                backoff.reset();
            }
            let wait = backoff.wait();
            let pause = match end {
                End::Itself | End::Nothing => SLOW_WAIT,
                // A token may be replaced at any moment, and is not tried more often than this meanwhile.
                _ if end.trouble() == LinkTrouble::Refused => LONGEST_WAIT,
                End::Again => Duration::ZERO,
                _ => wait,
            };
            sleep(pause).await;
        }
    }

    /// One subscription, from its beginning to its end.
    async fn session(&mut self) -> Result<Infallible, End> {
        self.ignored.clear();
        // The file may hold another token by now. It is read off the runtime's workers.
        let spec = self.spec.clone();
        let token = tokio::task::spawn_blocking(move || spec.token()).await;
        let bearer = token.unwrap_or_else(|_| self.spec.token())?;
        self.client = client(&self.channel, bearer);
        self.look().await?;
        if self.spec.engine.is_some() && self.roster.members.is_empty() {
            // Without a stream to name, the request would mean all streams.
            return Err(End::Nothing);
        }
        let request = proto::SubscribeRequest {
            streams: self
                .roster
                .members
                .iter()
                .map(|(stream, member)| selector(stream, member.resume()))
                .collect(),
            start: proto::Start::Snapshot.into(),
            others: self.spec.engine.is_none(),
            plane: self.own()?.id().to_string(),
        };
        let answer = timeout(ANSWER_WITHIN, self.client.subscribe(request)).await;
        let mut messages = answer.map_err(|_| End::Silent)??.into_inner();
        self.subscribed = true;
        let statuses = self.look().await?;
        if self.state.status().trouble != Some(LinkTrouble::Resubscribing) {
            self.remark(Mood::Good, "is followed");
        }
        self.failing = None;
        self.state.change(|status| {
            status.connected = true;
            status.trouble = None;
            status.connects += 1;
        });
        let connects = self.state.status().connects;
        info!(link = %self.link, plane = statuses.plane, connects, "following the upstream plane");
        self.follow(&mut messages).await
    }

    async fn follow(
        &mut self,
        messages: &mut Streaming<proto::SubscribeResponse>,
    ) -> Result<Infallible, End> {
        let mut look = interval(LOOK_AGAIN);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.tick().await;
        let max_silence = self.max_silence()?;
        let mut pulse = interval((max_silence / PULSES).max(SHORTEST_PULSE));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ages = std::pin::pin!(Fuse::terminated());
        loop {
            tokio::select! {
                message = messages.message() => self.message(message?.ok_or(End::Over)?).await?,
                (asked, statuses) = &mut ages => {
                    let statuses: proto::StatusResponse = statuses?;
                    self.roster.proven(asked, &statuses.engines);
                    for member in self.roster.members.values_mut() {
                        member.announce();
                    }
                }
                _ = pulse.tick(), if ages.is_terminated() => {
                    ages.set(ask_ages(self.client.clone(), max_silence * 3).fuse());
                }
                _ = look.tick() => {
                    let followed: Vec<StreamId> = self.roster.members.keys().cloned().collect();
                    self.look().await?;
                    let again = self.roster.members.values_mut().any(Member::wants_another_try);
                    // Where streams are named, others are not sent by themselves.
                    let others = self.spec.engine.is_some() && !self.roster.members.keys().eq(&followed);
                    if again || others {
                        return Err(End::Again);
                    }
                }
            }
        }
    }

    /// How old the proof may be that an engine behind the link is there.
    fn max_silence(&self) -> Result<Duration, End> {
        let usual = self.own()?.options().max_silence;
        Ok(self.spec.max_silence.unwrap_or(usual))
    }

    /// Asks which engines there are, and has the same.
    async fn look(&mut self) -> Result<proto::StatusResponse, End> {
        let mut request = tonic::Request::new(proto::StatusRequest::default());
        request.set_timeout(ANSWER_WITHIN);
        let answer = timeout(ANSWER_WITHIN, self.client.status(request)).await;
        let statuses = answer.map_err(|_| End::Silent)??.into_inner();
        let plane = self.own()?;
        if statuses.plane == plane.id().as_str() {
            return Err(End::Itself);
        }
        self.state.change(|status| status.plane = Some(PlaneId::reported(&statuses.plane)));
        self.roster.reconcile(&plane, &statuses.engines);
        if self.subscribed {
            self.roster.reached(&statuses.engines);
        }
        *self.timed.lock() = self.roster.members.values().map(|member| member.feeder().clone()).collect();
        Ok(statuses)
    }

    async fn message(&mut self, message: proto::SubscribeResponse) -> Result<(), End> {
        let stream = StreamId::new(EngineId::new(&message.engine), message.rank);
        let cursor = convert::cursor(&message);
        let Some(item) = message.item else { return Ok(()) };
        if let Item::Gone(_) = item {
            self.ignored.remove(&stream);
            self.roster.gone(&*self.own()?, &stream);
            return Ok(());
        }
        if let Item::Reset(reset) = &item {
            self.look_at_newcomer(&stream, reset).await?;
        }
        let Some(member) = self.roster.members.get_mut(&stream) else { return Ok(()) };
        let applied = match item {
            Item::Reset(_) => {
                member.reset(cursor);
                Ok(())
            }
            Item::Snapshot(chunk) => member.chunk(cursor, chunk),
            Item::Batch(batch) => member.batch(cursor, batch),
            Item::Standing(continuity) => {
                if let Some(continuity) = kvplane_proto::continuity(continuity.continuity) {
                    member.continuity(continuity);
                }
                Ok(())
            }
            Item::Gone(_) => Ok(()),
        };
        member.announce();
        match applied {
            // It is left alone for a while; the others go on.
            Err(Misfit::Budget) => self.state.count_void(Misfit::Budget.as_str()),
            Err(misfit) => return Err(End::Misfit(stream, misfit)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Every stream begins with a reset: one that is not known yet, or comes another way than before, is
    /// looked at.
    async fn look_at_newcomer(&mut self, stream: &StreamId, reset: &proto::Reset) -> Result<(), End> {
        let known = self.roster.members.get(stream);
        let same_way = known.is_some_and(|member| {
            let via = member.feeder().stream().via();
            // The last one is this plane.
            via.iter()
                .take(via.len().saturating_sub(1))
                .map(PlaneId::as_str)
                .eq(reset.via.iter().map(String::as_str))
        });
        let refused = goes_in_circles(&reset.via, self.own()?.id());
        if same_way && !refused || (known.is_none() && !self.ignored.insert(stream.clone())) {
            return Ok(());
        }
        self.look().await?;
        if self.roster.members.contains_key(stream) {
            self.ignored.remove(stream);
        }
        Ok(())
    }

    fn ended(&mut self, end: &End) {
        if let End::Misfit(_, misfit) = end {
            self.state.count_void(misfit.as_str());
        }
        self.subscribed = false;
        // First: a reader that sees the link down must also see that its streams are not credited.
        for member in self.roster.members.values_mut() {
            member.lost();
        }
        self.state.change(|status| {
            status.connected = false;
            status.trouble = Some(end.trouble());
            status.loops += u64::from(matches!(end, End::Itself));
        });
        // One line for a state, however often it is tried.
        let why = end.to_string();
        if end.trouble() == LinkTrouble::Resubscribing || self.failing.as_ref() == Some(&why) {
            debug!(link = %self.link, %end, "reconnecting to the upstream plane");
            return;
        }
        self.remark(Mood::Bad, &format!("is not followed: {}", end.trouble().words()));
        if matches!(end, End::Itself) {
            error!(link = %self.link, "the address is this plane's own: following it would be a loop");
        } else {
            warn!(link = %self.link, %end, "upstream plane lost");
        }
        self.failing = Some(why);
    }

    /// Writes down for people what became of the link.
    fn remark(&self, mood: Mood, what: &str) {
        if let Ok(plane) = self.own() {
            plane.remark(Said::new("link", mood, format!("{} {what}", self.link)));
        }
    }

    fn own(&self) -> Result<Arc<Plane>, End> {
        self.plane.upgrade().ok_or(End::PlaneGone)
    }
}

/// Asks how old the other plane's proof of every stream is. The moment of the question is what the ages count
/// from: that is never later than the moment at which the other plane looked.
async fn ask_ages(
    mut client: Client,
    within: Duration,
) -> (std::time::Instant, Result<proto::StatusResponse, End>) {
    let asked = kvplane_runtime::now();
    let request = proto::StatusRequest { brief: true, ..Default::default() };
    let statuses = match timeout(within, client.status(request)).await {
        Ok(answer) => answer.map(tonic::Response::into_inner).map_err(End::from),
        Err(_) => Err(End::Silent),
    };
    (asked, statuses)
}

fn selector(stream: &StreamId, resume: Option<(Cursor, StateDigest)>) -> proto::StreamSelector {
    proto::StreamSelector {
        engine: stream.engine.to_string(),
        rank: Some(stream.rank),
        resume: resume.map(|(Cursor { epoch, sequence }, digest)| {
            let (low, high) = digest.parts();
            proto::Cursor { epoch: epoch.as_u64(), sequence, digest: Some(proto::Digest { low, high }) }
        }),
    }
}

/// What a status says, without the layers around it.
fn reason(status: &tonic::Status) -> String {
    let mut source = std::error::Error::source(status);
    let mut text = status.message().to_owned();
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    if text.is_empty() { status.code().to_string() } else { text }
}
