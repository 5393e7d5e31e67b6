// Decisions and what came of them: where each token of the prompts went, and the requests that lost the most.

import { headers } from "./kept.js";
import { known } from "./known.js";
import { refusal } from "./live.js";
import { clock, counted, make, percent, say, short } from "./words.js";

const EVERY = 5_000;
const MEANING = {
  capacity: "asked for before, held by nobody any more",
  not_resumable: "held, but not in every cache group",
  eligibility: "the holder may not be picked",
  load: "the holder would have cost more",
  evicted_between: "evicted after the decision",
  wrong_endpoint: "another engine served",
  wrong_rank: "another rank served",
  wrong_tokens: "the engine saw another prompt",
  restart: "the engine restarted after the decision",
  not_exact: "the prediction was not exact, and said so",
  unknown: "nothing explains it",
};
const by = (id) => document.getElementById(id);
let asked = 0;
let shown = "";
let wanted = ""; // the receipt that is looked at

export function begin() {
  by("receipt-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = by("receipt-id").value.trim();
    if (id) location.hash = `#/routing/${encodeURIComponent(id)}`;
  });
}

/** Shows the ledger, and one receipt if the address names one. */
export function draw(receipt) {
  const other = receipt !== wanted;
  if (other) {
    wanted = receipt;
    by("receipt").replaceChildren();
    if (receipt) look(receipt);
  }
  if (!known.linked || Date.now() - asked < EVERY) return;
  asked = Date.now();
  read("v1/receipts?worst=10").then(show, fail);
}

async function read(path) {
  const response = await fetch(path, { headers: headers(), cache: "no-store" });
  if (response.ok) return response.json();
  throw new Error(await refusal(response));
}

function fail(error) {
  by("ledger-error").hidden = !error;
  say(by("ledger-error"), error ? error.message : "");
}

function show(ledger) {
  fail(null);
  const text = JSON.stringify(ledger);
  if (text === shown) return;
  shown = text;
  const { receipts, tokens, lost, worst } = ledger;
  by("ledger-empty").hidden = receipts.decided > 0;
  by("ledger").hidden = receipts.decided === 0;
  const tile = (name, title, number, note) =>
    make("div", { class: "tile", "data-tile": name }, make("span", { class: "title" }, title), make("b", {}, number), make("span", { class: "note" }, note));
  by("ledger-tiles").replaceChildren(
    tile("predicted", "Predicted", percent(tokens.predicted, tokens.prompt), `equal in ${counted(receipts.equal, "request")} of ${receipts.settled}`),
    tile("random", "Random picks", percent(tokens.random, tokens.prompt), "would have delivered"),
    tile("decided", "Decisions", short(receipts.decided), `${receipts.settled} settled, ${receipts.not_reported} not reported, ${receipts.aborted} aborted`),
    tile("drifts", "Drift", String(receipts.drifts), receipts.drifts ? "a defect: see kvplane doctor" : "predictions and events agree"),
  );
  const all = Object.values(lost).reduce((sum, number) => sum + number, 0);
  const row = ([cause, number]) => {
    const part = make("progress", { max: String(all || 1), value: String(number), "aria-label": `${cause}: part of what was lost` });
    return make("tr", { "data-cause": cause }, make("th", { scope: "row" }, cause), make("td", { class: "number" }, short(number)), make("td", {}, part), make("td", { class: "soft" }, MEANING[cause] ?? ""));
  };
  const causes = Object.entries(lost).sort(([, one], [, other]) => other - one);
  by("ledger-causes").replaceChildren(...causes.map(row));
  by("ledger-worst").replaceChildren(...worst.map(line));
}

const sum = (lost) => Object.values(lost).reduce((all, number) => all + number, 0);

/** A receipt in the list. */
function line(receipt) {
  const [first] = receipt.candidates;
  const causes = Object.entries(receipt.lost).filter(([, number]) => number).map(([cause]) => cause);
  const link = make("a", { href: `#/routing/${encodeURIComponent(receipt.id)}` }, receipt.id);
  const cells = [link, clock(receipt.at_ms), first ? `${first.engine}/${first.rank}` : "–", short(receipt.prompt_tokens), short(sum(receipt.lost)), causes.join(", ")];
  return make("tr", { "data-receipt": receipt.id }, ...cells.map((cell, at) => make("td", { class: at === 3 || at === 4 ? "number" : "" }, cell)));
}

async function look(id) {
  try {
    const receipt = await read(`v1/receipts/${encodeURIComponent(id)}`);
    if (id === wanted) by("receipt").replaceChildren(...account(receipt));
  } catch (error) {
    if (id === wanted) by("receipt").replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
  }
}

/** One request, from its prompt to what was delivered. */
function account(receipt) {
  const delivered = receipt.delivered?.cached_tokens;
  const steps = [
    ["prompt", receipt.prompt_tokens, ""],
    ["seen before", receipt.seen_before_tokens, "asked for here before"],
    ["fleet", receipt.fleet_tokens, "the most that any engine holds"],
    ["eligible", receipt.eligible_tokens, "of those that may be picked"],
    ["predicted", receipt.predicted_tokens, `for the one picked, ${receipt.trust}`],
    ["delivered", delivered ?? "–", delivered === undefined ? receipt.state : "as the engine reported"],
  ];
  const step = ([name, number, note]) => make("tr", { "data-step": name }, make("th", { scope: "row" }, name), make("td", { class: "number" }, String(number)), make("td", { class: "soft" }, note));
  const lost = Object.entries(receipt.lost).filter(([, number]) => number);
  const words = lost.map(([cause, number]) => `${number} by ${cause} (${MEANING[cause] ?? ""})`);
  const why = receipt.without_tokens ? `${receipt.why}: ${receipt.without_tokens}` : receipt.why;
  const candidate = ({ engine, rank, cached_tokens, trust, cost }) => make("li", {}, `${engine}/${rank}: ${cached_tokens} tokens, ${trust}, cost ${cost.toFixed(4)}`);
  return [
    make("h2", {}, `Receipt ${receipt.id}`),
    make("p", { class: "facts" }, `${receipt.policy}, ${why}, ${receipt.decide_us} µs, ${clock(receipt.at_ms)}`),
    make("table", { class: "ledger" }, make("tbody", {}, ...[...steps].map(step))),
    make("p", {}, words.length ? `Lost: ${words.join("; ")}.` : "Nothing was lost."),
    ...(receipt.drift ? [make("p", { class: "error" }, `Drift: ${receipt.drift.kind} at block ${receipt.drift.block}.`)] : []),
    make("ol", {}, ...receipt.candidates.map(candidate)),
  ];
}
