// Who holds how much of a prompt, drawn along it.

import { headers } from "./kept.js";
import { key, known } from "./known.js";
import { refusal } from "./live.js";
import { make, say, sentence, standing } from "./words.js";

// A medium that the plane does not know is held, and never part of an answer.
const COLDEST_FIRST = ["remote", "disk", "host", "device"];
const LARGEST = 0xffff_ffff;
const ANSWERED_WITHIN = 20_000;
const NAMED = 20; // of the ranks that are not credited; the others are counted
let models = "";
let questions = 0; // asked so far: only the last one's answer is shown

export function begin() {
  const form = document.getElementById("ask");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    questions += 1;
    const number = questions;
    const shown = (show) => number === questions && show();
    ask(shown).catch(({ name }) => shown(() => fail(name === "TimeoutError" ? "kvplane did not answer in time." : "kvplane does not answer.")));
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
  if (!words.length) throw new Error("No token ids given.");
  return words.map((word, at) => {
    const id = Number(word);
    if (/^[0-9]+$/.test(word) && id <= LARGEST) return id;
    throw new Error(`Number ${at + 1} is "${word.slice(0, 20)}": a token id is a whole number from 0 to ${LARGEST}.`);
  });
}

const CHAT_FIELDS = ["messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "cache_salt"];

/** The prompt's part of a question. Text is tokenized by the plane, for models that have a tokenizer there. */
export function prompt(kind, given) {
  if (kind === "text") return { prompt: given };
  if (kind !== "chat") return { token_ids: tokenIds(given) };
  let chat;
  try {
    chat = JSON.parse(given);
  } catch {
    throw new Error("The chat is not JSON.");
  }
  if (Array.isArray(chat)) return { messages: chat };
  if (!chat?.messages) throw new Error("The chat has no messages.");
  return Object.fromEntries(CHAT_FIELDS.filter((name) => name in chat).map((name) => [name, chat[name]]));
}

/** Asks what the form says; `shown` runs what shows the outcome, unless another question was asked meanwhile. */
async function ask(shown) {
  fail("");
  const value = (id) => document.getElementById(id).value;
  const question = { model: value("ask-model") };
  try {
    Object.assign(question, prompt(value("ask-kind"), value("ask-tokens")));
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
  return shown(() => show(answer, answer.tokenized?.tokens ?? question.token_ids.length));
}

function show(answer, tokens) {
  const { counts } = answer;
  const best = new Set(answer.best.map(key));
  const credited = counts.holders + counts.empty;
  const summary = `${counts.holders.toLocaleString()} of ${credited.toLocaleString()} ranks hold a part of these ${tokens.toLocaleString()} tokens. Trust of the answer: `;
  const nodes = [make("p", {}, summary, make("b", {}, answer.trust), "."), ruler(tokens)];
  if (answer.tokenized) nodes.splice(1, 0, make("p", { class: "empty" }, `Parity with the engines' tokenizer: ${answer.tokenized.parity}.`));
  for (const match of answer.matches) nodes.push(holder(match, tokens, best.has(key(match))));
  const unlisted = counts.holders - answer.matches.length;
  if (unlisted) nodes.push(make("p", { class: "empty" }, `and ${unlisted.toLocaleString()} more that hold no more than these`));
  if (counts.shorter_than_block) {
    const count = counts.shorter_than_block.toLocaleString();
    nodes.push(make("p", { class: "empty" }, `The prompt is shorter than one block of ${count} ranks: they cannot have it cached.`));
  }
  if (!credited) nodes.push(make("p", { class: "empty" }, "No rank of this model can be credited right now."));
  const notCredited = (other) => {
    const rank = known.ranks.get(key(other));
    const why = rank && standing(rank) !== "exact" ? sentence(rank) : other.reason;
    return `${key(other)} is not credited: ${why}`;
  };
  for (const words of answer.not_credited.slice(0, NAMED).map(notCredited)) nodes.push(make("p", { class: "empty" }, words));
  const unnamed = counts.not_credited - Math.min(NAMED, answer.not_credited.length);
  if (unnamed) nodes.push(make("p", { class: "empty" }, `and ${unnamed.toLocaleString()} more that are not credited`));
  document.getElementById("ask-answer").replaceChildren(...nodes);
}

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
