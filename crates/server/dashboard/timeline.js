// What happened, newest first.

import { known } from "./live.js";
import { clock, make } from "./words.js";

const SHOWN = 200;
let drawn = ""; // what the list shows: page and last number

export function draw(engine) {
  const remarks = known.remarks.filter((remark) => !engine || remark.engine === engine);
  const last = remarks.at(-1)?.number ?? 0;
  const wanted = `${engine ?? ""} ${last} ${remarks.length}`;
  if (wanted === drawn) return;
  const before = Number(drawn.split(" ").at(-2) ?? 0);
  drawn = wanted;
  const list = document.getElementById("timeline");
  list.replaceChildren(...remarks.slice(-SHOWN).reverse().map((remark) => item(remark, remark.number > before && before > 0)));
  document.getElementById("timeline-empty").hidden = remarks.length > 0;
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
