// Curves over the whole job: the mean of each interval as a line, its least and largest value as an
// area. Dashed lines are where a later round began.

const CURVES = [['loss', 'Loss'], ['samples_per_second', 'Samples per second'], ['steps_per_second', 'Steps per second']];
const CURVE_HEIGHT = 180;
const MARGIN = {top: 10, right: 12, bottom: 24, left: 52};
const MAX_MARKS = 100;

const plots = new Map();  // By name.

// Ticks at whole seconds, minutes or hours: at most `most` of them up to `end` (ms).
function timeTicks(end, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400].map(s => s * 1000);
  const step = steps.find(each => end / each <= most) || Math.ceil(end / most / 86400000) * 86400000;
  return d3.range(0, end + 1, step);
}

function drawTimeAxis(axis, x, width) {
  axis.call(d3.axisBottom(x).tickValues(timeTicks(x.domain()[1], Math.max(2, width / 90))).tickFormat(shortDuration));
}

function makePlot(name, title) {
  const figure = element('figure', {});
  const caption = element('figcaption', {}, element('strong', {}, title), element('span'));
  const svg = d3.create('svg').attr('height', CURVE_HEIGHT).attr('role', 'img').attr('tabindex', 0);
  for (const kind of ['spread', 'mean']) svg.append('path').attr('class', kind);
  for (const kind of ['marks', 'x', 'y']) svg.append('g').attr('class', kind);
  svg.append('line').attr('class', 'cursor').attr('visibility', 'hidden');
  figure.append(caption, svg.node());
  document.getElementById('curves').append(figure);
  const plot = {name, title, figure, svg, text: caption.lastChild, points: [], cursor: null};
  const point = index => {
    plot.cursor = index;
    drawCursor(plot);
  };
  svg.on('pointermove', () => {
    const x = d3.mouse(svg.node())[0];
    if (plot.points.length > 0) point(d3.scan(plot.points, (a, b) => Math.abs(plot.x(a.at) - x) - Math.abs(plot.x(b.at) - x)));
  });
  svg.on('pointerleave', () => point(null));
  svg.on('blur', () => point(null));
  svg.on('keydown', () => {
    const moves = {ArrowLeft: -1, ArrowRight: 1};
    const last = plot.points.length - 1;
    if (!(d3.event.key in moves) || last < 0) return;
    d3.event.preventDefault();
    point(Math.min(Math.max((plot.cursor === null ? last + 1 : plot.cursor) + moves[d3.event.key], 0), last));
  });
  return plot;
}

function drawCursor(plot) {
  const at = plot.cursor === null ? null : plot.points[plot.cursor];
  plot.svg.select('.cursor').attr('visibility', at ? 'visible' : 'hidden');
  const text = at ? `${number(at.mean)} at ${shortDuration(at.at)} (${number(at.least)} to ${number(at.most)})` : plot.summary;
  setText(plot.text, text);
  // Who hears the page hears the value when the cursor moves, and not each second.
  const label = at ? text : `${plot.title}: ${plot.summary}. Arrow keys read single values.`;
  if (document.activeElement !== plot.svg.node() || at) plot.svg.attr('aria-label', label);
  if (at) plot.svg.select('.cursor').attr('x1', plot.x(at.at)).attr('x2', plot.x(at.at)).attr('y1', MARGIN.top).attr('y2', CURVE_HEIGHT - MARGIN.bottom);
}

// A straight scale, unless values that are all positive differ by more than a hundred times.
function valueScale(least, most) {
  if (least > 0 && most / least > 100) return [d3.scaleLog(), 'log scale'];
  if (least === most) [least, most] = [least - Math.abs(least || 1) / 2, most + Math.abs(most || 1) / 2];
  return [d3.scaleLinear().domain([least, most]), ''];
}

function drawPlot(plot, curve, job) {
  const width = plot.figure.clientWidth;
  plot.points = inOrder(curve.points).map(([i, [mean, least, most]]) => ({i, at: Math.min((i + 0.5) * curve.interval_ms, job.elapsed_ms), mean, least, most}));
  const least = d3.min(plot.points, p => p.least);
  const most = d3.max(plot.points, p => p.most);
  const [y, note] = valueScale(least, most);
  y.domain(note ? [least, most] : y.domain()).range([CURVE_HEIGHT - MARGIN.bottom, MARGIN.top]);
  if (!note) y.nice(4);
  const x = plot.x = d3.scaleLinear().domain([0, Math.max(job.elapsed_ms, 1)]).range([MARGIN.left, width - MARGIN.right]);
  const {svg} = plot;
  svg.attr('viewBox', `0 0 ${width} ${CURVE_HEIGHT}`);
  const isWhole = (a, i) => i === 0 || a.i - plot.points[i - 1].i <= curve.gap * 1.5;
  const runs = [];  // Where intervals without values lie between, the line is broken.
  plot.points.forEach((p, i) => (isWhole(p, i) && i > 0 ? runs[runs.length - 1].push(p) : runs.push([p])));
  // A single point is drawn as a short line.
  const lines = runs.map(run => (run.length > 1 ? run : [{...run[0], at: Math.max(run[0].at - curve.interval_ms / 2, 0)}, run[0]]));
  const area = d3.area().x(p => x(p.at)).y0(p => y(p.least)).y1(p => y(p.most));
  const line = d3.line().x(p => x(p.at)).y(p => y(p.mean));
  svg.select('.spread').attr('d', lines.map(area).join(''));
  svg.select('.mean').attr('d', lines.map(line).join(''));
  drawTimeAxis(svg.select('.x').attr('transform', `translate(0,${CURVE_HEIGHT - MARGIN.bottom})`), x, width);
  svg.select('.y').attr('transform', `translate(${MARGIN.left},0)`).call(d3.axisLeft(y).ticks(4, note ? '~g' : undefined));
  const begins = inOrder(job.rounds).slice(1).slice(-MAX_MARKS).map(([, round]) => round.began_ms);
  svg.select('.marks').selectAll('line').data(begins).join('line').attr('class', 'round-mark')
    .attr('x1', x).attr('x2', x).attr('y1', MARGIN.top).attr('y2', CURVE_HEIGHT - MARGIN.bottom);
  const last = plot.points[plot.points.length - 1];
  const isNow = job.elapsed_ms / curve.interval_ms - last.i < 2 * curve.gap;
  plot.summary = `${isNow ? `${number(last.mean)} now` : `last ${number(last.mean)}`}, ${number(least)} least, ${number(most)} most${note ? `, ${note}` : ''}`;
  if (plot.cursor !== null) plot.cursor = Math.min(plot.cursor, plot.points.length - 1);
  drawCursor(plot);
}

function showCurves(job) {
  let any = false;
  for (const [name, title] of CURVES) {
    const curve = job.curves && job.curves[name];
    const has = Boolean(curve) && Object.keys(curve.points || {}).length > 0;
    if (has && !plots.has(name)) plots.set(name, makePlot(name, title));
    const plot = plots.get(name);
    if (plot) plot.figure.hidden = !has;
    if (!has) continue;
    any = true;
    // What is not on the screen is drawn by the call after it has come there.
    const box = plot.figure.getBoundingClientRect();
    const isSeen = box.bottom >= 0 && box.top <= innerHeight;
    if (isSeen || plot.width !== box.width) drawPlot(plot, curve, job);
    plot.width = box.width;
  }
  document.getElementById('curves').parentElement.hidden = !any;
}
