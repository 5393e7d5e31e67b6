// A line or a stack over the last minutes, on a canvas.

/**
 * Draws series [{colour, values}] stacked over each other, the values at the times `times`, from `now - span` to `now`; returns the
 * largest sum.
 */
export function plot(canvas, times, series, now, span) {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return 0;
  if (canvas.width !== width * scale || canvas.height !== height * scale) {
    canvas.width = width * scale;
    canvas.height = height * scale;
  }
  const draw = canvas.getContext("2d");
  draw.setTransform(scale, 0, 0, scale, 0, 0);
  draw.clearRect(0, 0, width, height);
  const count = times.length;
  const sums = new Array(count).fill(0);
  for (const { values } of series) values.forEach((value, at) => (sums[at] += value));
  const most = Math.max(1, ...sums);
  const x = (at) => width - ((now - times[at]) / span) * width;
  const y = (value) => height - 1 - (value / most) * (height - 6);
  const below = new Array(count).fill(0);
  for (const { colour, values } of series) {
    if (!values.some((value) => value > 0)) continue;
    draw.beginPath();
    for (let at = 0; at < count; at += 1) draw.lineTo(x(at), y(below[at] + values[at]));
    for (let at = count - 1; at >= 0; at -= 1) draw.lineTo(x(at), y(below[at]));
    draw.closePath();
    draw.globalAlpha = 0.25;
    draw.fillStyle = colour;
    draw.fill();
    draw.globalAlpha = 1;
    draw.beginPath();
    for (let at = 0; at < count; at += 1) draw.lineTo(x(at), y(below[at] + values[at]));
    draw.strokeStyle = colour;
    draw.lineWidth = 1.5;
    draw.stroke();
    values.forEach((value, at) => (below[at] += value));
  }
  return most;
}
