"""A server as the original is, with switches for what can go wrong with one."""

import threading
import time
from concurrent import futures
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ..wait import eventually
from .index import Index


@dataclass
class Heard:
    """A message that came in, in the order of arrival."""

    kind: str  # "report", "event" or "lookup"
    message: object
    size: int
    time_left: float  # of the caller's deadline; endless if it has none
    at: float


class Server:
    """`inferencecache.v1alpha1` on a port of its own. `pb` has the generated messages and services."""

    def __init__(self, pb, address="127.0.0.1:0", clock=time.time, policy=None, health_service=True):
        self.pb = pb
        self.clock = clock
        self.policy = policy
        self.health_service = health_service
        self.heard = []
        self.lives = 0
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusal = None
        self.address = address
        self._server = None
        self.start()

    # --- switches -------------------------------------------------------------------------------------------

    def start(self):
        """A life with nothing in its index, on the port of the one before."""
        self.index = Index(self.clock, self.policy)
        self._server = grpc.server(futures.ThreadPoolExecutor(64), options=[("grpc.so_reuseport", 0)])
        self.pb.add_InferenceCacheServicer_to_server(self._servicer(), self._server)
        if self.health_service:
            well = health.HealthServicer()
            well.set("", health_pb2.HealthCheckResponse.SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(well, self._server)
        port = eventually(lambda: self._bind(), f"{self.address} is free")
        self.address = f"127.0.0.1:{port}"
        self._server.start()
        self.lives += 1

    def _bind(self):
        try:
            return self._server.add_insecure_port(self.address)
        except RuntimeError:
            return 0

    def stop(self):
        """Ends without a word: calls under way fail."""
        if self._server is not None:
            self._flowing.set()
            self._server.stop(None).wait()
            self._server = None

    def restart(self):
        self.stop()
        self.start()

    def stall(self):
        """Every call is held, unanswered and without effect, until `lift`, or until its caller gives up."""
        self._flowing.clear()

    def lift(self):
        self._flowing.set()

    def refuse(self, how):
        """How calls fail from now on: a grpc.StatusCode, `False` for "not accepted", None for not at all."""
        self._refusal = how

    def forget(self):
        """What happens to everything that is not told again within the TTL."""
        with self._lock:
            self.index.forget()

    # --- what tests look at ---------------------------------------------------------------------------------

    def held(self, whose, scheme=None):
        """What a replica (tenant, model, replica) is believed to hold."""
        with self._lock:
            return self.index.held(*whose, scheme)

    def stats(self, whose):
        with self._lock:
            return self.index.stats.get(whose, (None,))[0]

    def messages(self, kind, since=0):
        return [heard.message for heard in self.heard[since:] if heard.kind == kind]

    def stub(self):
        """A client of this server."""
        return self.pb.InferenceCacheStub(grpc.insecure_channel(self.address))

    # --- the service ----------------------------------------------------------------------------------------

    def _servicer(self):
        servicer = self.pb.InferenceCacheServicer()
        servicer.ReportCacheState = self._report
        servicer.PublishEvent = self._event
        servicer.LookupRoute = self._lookup
        servicer.GetCacheState = self._state
        # What the original only pretends to answer.
        servicer.RenderTemplate = lambda request, context: self.pb.RenderTemplateResponse(reason_code="OK")
        servicer.LookupPDRoute = lambda request, context: self.pb.LookupPDRouteResponse(reason_code="NO_HINT")
        servicer.StreamCacheEvents = lambda request, context: iter(())
        servicer.StreamMetrics = lambda request, context: iter(())
        return servicer

    def _take(self, kind, message, context):
        """Notes a message and lets it pass, or not. Returns whether it is to be applied."""
        left = context.time_remaining()
        with self._lock:
            self.heard.append(Heard(kind, message, message.ByteSize(), left, self.clock()))
        while not self._flowing.wait(0.02):
            if not context.is_active():
                return False
        refusal = self._refusal
        if isinstance(refusal, grpc.StatusCode):
            context.abort(refusal, "refused by the script")
        return refusal is None

    def _report(self, updates, context):
        accepted = True
        for update in updates:
            if self._take("report", update, context):
                with self._lock:
                    self.index.report(update)
            else:
                accepted = False
        return self.pb.Ack(accepted=accepted)

    def _event(self, event, context):
        accepted = self._take("event", event, context)
        if accepted:
            with self._lock:
                self.index.event(event)
        return self.pb.Ack(accepted=accepted)

    def _lookup(self, request, context):
        self._take("lookup", request, context)
        with self._lock:
            answer = self.index.lookup(request)
        response = self.pb.LookupRouteResponse(reason_code=answer.reason, adapter_id=request.adapter_id)
        for score in answer.scores:
            response.replica_scores.add(
                replica_id=score.replica, score=score.score, matched_tokens=score.matched_tokens,
                estimated_cache_hit_prob=score.probability, tier=score.tier,
            )
        return response

    def _state(self, request, context):
        with self._lock:
            of = (request.tenant_id, request.model_id)
            replicas = [kept[0] for whose, kept in sorted(self.index.stats.items(), key=lambda item: item[0]) if whose[:2] == of]
            prefixes = sum(1 for key in self.index.entries if key[:2] == of)
        return self.pb.GetCacheStateResponse(replicas=replicas, summary=self.pb.CacheSummary(total_prefixes=prefixes))
