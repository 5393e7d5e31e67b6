// What happened, newest first.

import { known } from "./known.js";
import { clock, make, say } from "./words.js";

const SHOWN = 200;
const lines = new Map(); // number -> its line
let drawn = ""; // what the list shows: of which run of the plane, which engine, what of it

/** `changed` runs when other things are to be shown. */
export function begin(changed) {
  document.getElementById("problems").addEventListener("change", changed);
}

export function draw(engine) {
  const list = document.getElementById("timeline");
  const problems = document.getElementById("problems").checked;
  const wanted = (remark) => (!engine || remark.engine === engine) && (!problems || remark.mood === "bad");
  const remarks = known.remarks.filter(wanted).slice(-SHOWN).reverse();
  const what = JSON.stringify([known.plane?.id, engine, problems]);
  const anew = drawn !== what;
  if (anew) {
    drawn = what;
    lines.clear();
    list.replaceChildren();
  }
  // Lines that stay are left alone: somebody may be at one of them.
  const numbers = new Set(remarks.map((remark) => remark.number));
  for (const [number, line] of lines) {
    if (numbers.has(number)) continue;
    line.remove();
    lines.delete(number);
  }
  let at = list.firstElementChild;
  for (const remark of remarks) {
    if (lines.has(remark.number)) {
      at = at.nextElementSibling;
    } else {
      lines.set(remark.number, item(remark, !anew));
      list.insertBefore(lines.get(remark.number), at);
    }
  }
  const empty = document.getElementById("timeline-empty");
  empty.hidden = remarks.length > 0 || known.members === 0;
  say(empty, problems ? "No problem." : "Nothing yet.");
}

function item(remark, fresh) {
  const time = make("time", { datetime: new Date(remark.unix_ms).toISOString() }, clock(remark.unix_ms));
  const line = make("li", { "data-mood": remark.mood, "data-topic": remark.topic, class: fresh ? "fresh" : "" }, time);
  if (remark.engine !== undefined) {
    const name = `${remark.engine}/${remark.rank}`;
    line.append(make("a", { href: `#/engine/${encodeURIComponent(remark.engine)}` }, name), " ");
  }
  line.append(remark.words);
  if (remark.times > 1) line.append(make("span", { class: "times" }, ` ×${remark.times}`));
  return line;
}
