// The rounds on a time line, and as a table with what ended each of them and what that cost.

const LINE_HEIGHT = 58;
const ROWS = 50;

// The time that its end has cost: until the first step of the next one.
function costOf(rounds, i) {
  const end = rounds[i].ended_ms;
  const next = rounds[i + 1];
  return next && next.first_step_ms !== undefined && end !== undefined ? next.first_step_ms - end : undefined;
}

function showTimeline(rounds, job) {
  const box = document.getElementById('timeline');
  const width = box.clientWidth;
  if (!box.firstChild) {
    const made = d3.select(box).append('svg').attr('height', LINE_HEIGHT).attr('role', 'img');
    for (const kind of ['lost', 'rounds', 'x']) made.append('g').attr('class', kind);
  }
  const svg = d3.select(box).select('svg').attr('viewBox', `0 0 ${width} ${LINE_HEIGHT}`);
  const x = d3.scaleLinear().domain([0, Math.max(job.elapsed_ms, 1)]).range([1, width - 12]);
  const span = (begin, end) => Math.max(x(end) - x(begin), 1);
  const works = rounds.map(round => ({number: round.round, begin: round.first_step_ms === undefined ? round.began_ms : round.first_step_ms,
    end: round.ended_ms === undefined ? job.elapsed_ms : round.ended_ms}));
  const bars = svg.select('.rounds').selectAll('rect').data(works).join(enter => enter.append('rect').call(bar => bar.append('title')))
    .attr('class', 'works').attr('x', round => x(round.begin)).attr('width', round => span(round.begin, round.end)).attr('y', 4).attr('height', 24);
  bars.select('title').text(round => `round ${round.number}, ${duration(round.end - round.begin)}`);
  // Each loss has a triangle below, which also those who see no colours can see.
  const losses = rounds.filter((round, i) => round.ended_ms !== undefined && (i + 1 < rounds.length || job.state !== 'finished'));
  svg.select('.lost').selectAll('path').data(losses).join('path').attr('class', 'lost-time')
    .attr('d', round => `M${x(round.ended_ms)},28l-5,9h10z`);
  drawTimeAxis(svg.select('.x').attr('transform', `translate(0,${LINE_HEIGHT - 20})`), x, width);
  svg.attr('aria-label', `${count(rounds.length, 'round')} in ${duration(job.elapsed_ms)}; the table below tells of each`);
}

function rowsOf(rounds) {
  return rounds.map((round, i) => {
    const cost = costOf(rounds, i);
    const steps = round.steps ? `${number(round.steps[0])} to ${number(round.steps[1])}` : 'none';
    return [String(round.round), shortDuration(round.began_ms), number(round.world_size), steps,
      cost === undefined ? '' : duration(cost), round.ended_ms === undefined ? 'runs' : round.end];
  }).slice(-ROWS).reverse();
}

function showRounds(job) {
  const rounds = inOrder(job.rounds).map(([, round]) => round);
  showTimeline(rounds, job);
  showTable('rounds', [['Round', 'number'], ['Began after', 'number'], ['Workers', 'number'], ['Steps', 'number'], ['Time lost', 'number'], ['How it ended', 'text']],
    rowsOf(rounds));
}
