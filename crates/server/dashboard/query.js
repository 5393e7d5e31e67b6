// Who holds how much of a prompt, drawn along it.

import { headers } from "./kept.js";
import { key, known } from "./known.js";
import { refusal } from "./live.js";
import { make, say, sentence, standing } from "./words.js";

// A medium that the plane does not know is held, and never part of an answer.
const COLDEST_FIRST = ["remote", "disk", "host", "device"];
const LARGEST = 0xffff_ffff;
const ANSWERED_WITHIN = 20_000;
const NAMED = 20; // of the ranks that hold nothing; the others are counted
let models = "";
let questions = 0; // asked so far: only the last one's answer is shown

export function begin() {
  const form = document.getElementById("ask");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    questions += 1;
    const number = questions;
    const shown = (show) => number === questions && show();
    ask(shown).catch(({ name }) => shown(() => fail(name === "TimeoutError" ? "The plane did not answer in time." : "The plane does not answer.")));
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

export function draw() {
  const names = [...new Set([...known.ranks.values()].map((rank) => rank.model))].sort();
  if (models === JSON.stringify(names)) return;
  models = JSON.stringify(names);
  const select = document.getElementById("ask-model");
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => make("option", { value: name }, name || "(no model)")));
  if (names.includes(chosen)) select.value = chosen;
}

function fail(message) {
  const error = document.getElementById("ask-error");
  error.hidden = !message;
  say(error, message);
  if (message) document.getElementById("ask-answer").replaceChildren();
}

/** Token ids as they are pasted: a JSON list, or numbers with commas or spaces between. Anything else is said, not guessed. */
export function tokenIds(text) {
  const words = text.trim().replace(/^\[/, "").replace(/\]$/, "").split(/[\s,;]+/).filter(Boolean);
  if (!words.length) throw new Error("There is no token id in it.");
  return words.map((word, at) => {
    const id = Number(word);
    if (/^[0-9]+$/.test(word) && id <= LARGEST) return id;
    throw new Error(`Number ${at + 1} is "${word.slice(0, 20)}": a token id is a whole number from 0 to ${LARGEST}.`);
  });
}

/** Asks what the form says; `shown` runs what shows the outcome, unless another question was asked meanwhile. */
async function ask(shown) {
  fail("");
  const value = (id) => document.getElementById(id).value;
  const question = { model: value("ask-model") };
  try {
    question.token_ids = tokenIds(value("ask-tokens"));
  } catch (error) {
    return fail(error.message);
  }
  if (value("ask-salt")) question.cache_salt = value("ask-salt");
  if (value("ask-adapter")) question.lora_name = value("ask-adapter");
  document.getElementById("ask-answer").replaceChildren(make("p", { class: "empty" }, "asking …"));
  const asked = { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify(question) };
  const response = await fetch("v1/query", { ...asked, signal: AbortSignal.timeout(ANSWERED_WITHIN) });
  if (!response.ok) {
    const why = await refusal(response);
    return shown(() => fail(`Not answered: ${why}.`));
  }
  const answer = await response.json();
  return shown(() => show(answer, question.token_ids.length));
}

function show(answer, tokens) {
  const best = new Set(answer.best.map(key));
  const matches = answer.matches.toSorted((one, two) => two.tokens - one.tokens);
  const holders = matches.filter((match) => match.tokens > 0);
  const summary = `${holders.length} of ${matches.length} ranks hold a part of these ${tokens.toLocaleString()} tokens. The answer is worth: `;
  const nodes = [make("p", {}, summary, make("b", {}, answer.trust), "."), ruler(tokens)];
  for (const match of holders) nodes.push(holder(match, tokens, best.has(key(match))));
  const others = matches.filter((match) => match.tokens === 0).map(key);
  if (others.length) nodes.push(make("p", { class: "empty" }, `Nothing of it: ${some(others).join(", ")}`));
  const short = matches.filter((match) => match.note === "prompt_shorter_than_block");
  if (short.length) {
    const names = some(short.map((match) => `${key(match)} (${match.block_size.toLocaleString()} tokens)`));
    nodes.push(make("p", { class: "empty" }, `The prompt is shorter than one block, so nothing of it can be cached: ${names.join(", ")}`));
  }
  if (!matches.length) nodes.push(make("p", { class: "empty" }, "No rank of this model can be credited right now."));
  const notCredited = (other) => {
    const rank = known.ranks.get(key(other));
    const why = rank && standing(rank) !== "exact" ? sentence(rank) : other.reason;
    return `${key(other)} is not credited: ${why}`;
  };
  for (const words of some(answer.not_credited.map(notCredited))) nodes.push(make("p", { class: "empty" }, words));
  document.getElementById("ask-answer").replaceChildren(...nodes);
}

/** The first of many, and how many there are beyond. */
const some = (all) => (all.length > NAMED ? [...all.slice(0, NAMED), `and ${all.length - NAMED} more`] : all);

function ruler(tokens) {
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => make("span", {}, Math.round(tokens * part).toLocaleString()));
  return make("p", { class: "ruler", "aria-hidden": "true" }, ...marks);
}

function holder(match, tokens, isBest) {
  const share = (held) => Math.min(100, (100 * held) / tokens);
  const bar = make("div", { class: "bar", role: "img", "aria-label": `${match.tokens} of ${tokens} tokens` });
  for (const tier of COLDEST_FIRST) {
    const held = match.tiers[tier] ?? 0;
    if (!held) continue;
    const part = make("i", { "data-tier": tier, title: `${tier} and warmer: ${held} tokens` });
    part.style.width = `${share(held)}%`;
    bar.append(part);
  }
  const link = make("a", { href: `#/engine/${encodeURIComponent(match.engine)}` }, key(match));
  const size = `${match.tokens.toLocaleString()} tokens (${share(match.tokens).toFixed(0)} %)`;
  const expected = `expects ${match.cached_tokens.toLocaleString()} cached`;
  const worth = match.trust === "exact" ? "exact" : `${match.trust}: ${known.ranks.get(key(match))?.words ?? match.reason}`;
  const words = [link, make("span", {}, size), make("span", { "data-cached": match.cached_tokens, title: "what the engine is expected to report as cached_tokens for this prompt" }, expected), make("span", { class: "hint" }, worth)];
  if (isBest) words.splice(1, 0, make("b", { class: "best" }, "best"));
  return make("div", { class: "holder", "data-holder": key(match) }, make("p", {}, ...words), bar);
}
