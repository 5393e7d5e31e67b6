// Decisions: requests at engines now, and tokens that caches saved.

import { headers } from "./kept.js";
import { known } from "./known.js";
import { counted, make, percent, say, short } from "./words.js";

const EVERY = 2_000;
const MINUTE = 60_000;
const parts = {};
const samples = []; // {at, delivered}, of the last minute
let built = false;
let asked = 0;
let ledger = null;
let listed = "";

/** Reads the account while the page is seen. What is drawn next is the answer. */
function refresh() {
  if (!known.linked || Date.now() - asked < EVERY) return;
  asked = Date.now();
  fetch("v1/receipts?worst=0", { headers: headers(), cache: "no-store" })
    .then((response) => (response.ok ? response.json() : Promise.reject(response.status)))
    .then((now) => {
      ledger = now;
      const at = Date.now();
      const delivered = now.tokens.delivered;
      // After a restart it begins anew.
      if (samples.length && samples.at(-1).delivered > delivered) samples.length = 0;
      samples.push({ at, delivered });
      while (samples.length > 2 && at - samples[1].at >= MINUTE) samples.shift();
      draw();
    })
    .catch(() => {});
}

function build() {
  built = true;
  const tile = (name, title) => {
    parts[name] = { number: make("b"), note: make("span", { class: "note" }) };
    return make("div", { class: "tile", "data-tile": name }, make("span", { class: "title" }, title), parts[name].number, parts[name].note);
  };
  document.getElementById("routing").append(
    tile("saved", "Tokens saved per minute"),
    tile("delivered", "Prompt tokens from caches"),
    tile("as-predicted", "Predicted = delivered"),
    tile("live", "Requests now"),
  );
  setInterval(() => !document.getElementById("page-routing").hidden && refresh(), EVERY);
}

/** Tokens a minute, from the first sample to the last; null while there is one. */
function saved() {
  const [first, last] = [samples[0], samples.at(-1)];
  return samples.length > 1 && last.at > first.at ? ((last.delivered - first.delivered) * MINUTE) / (last.at - first.at) : null;
}

export function draw() {
  if (!built) build();
  refresh();
  if (!ledger) return;
  const { receipts, tokens, engines } = ledger;
  const set = (name, number, note) => {
    say(parts[name].number, number);
    say(parts[name].note, note);
  };
  const each = saved();
  set("saved", each === null ? "–" : short(Math.round(each)), "not computed again");
  set("delivered", percent(tokens.delivered, tokens.prompt), receipts.settled ? `${short(tokens.delivered)} of ${short(tokens.prompt)}` : "nobody has reported what was delivered");
  set("as-predicted", percent(receipts.equal, receipts.settled), `${counted(receipts.settled, "receipt")}, ${counted(receipts.drifts, "drift")}`);
  const live = engines.reduce((sum, one) => sum + one.requests, 0);
  set("live", short(live), counted(engines.length, "rank"));
  bars(engines);
}

function bars(engines) {
  const wanted = JSON.stringify(engines);
  if (wanted === listed) return;
  listed = wanted;
  const list = (id, rows, none) => {
    const most = Math.max(1, ...rows.map((row) => row.count));
    const line = ({ name, count, note }) =>
      make("li", { "data-name": name }, make("span", {}, name), make("progress", { value: String(count), max: String(most), "aria-label": name }), make("b", {}, short(count)), make("span", { class: "note" }, note));
    document.getElementById(id).replaceChildren(...(rows.length ? rows.map(line) : [make("li", { class: "note" }, none)]));
  };
  const waits = (one) => (one.uncached_tokens ? `${short(one.uncached_tokens)} tokens to compute` : "");
  list("routing-live", engines.map((one) => ({ name: `${one.engine}/${one.rank}`, count: one.requests, note: waits(one) })), "No decision was made yet.");
}
