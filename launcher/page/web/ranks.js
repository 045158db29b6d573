// Nodes and ranks as a grid. A rank is a button: its colour and its sign say how it is, its text
// says which rank it is.

const KINDS = {
  good: ['', 'in the round'],
  behind: ['▽', 'its node is seconds behind'],
  late: ['▲', 'late: the others wait for it'],
  idle: ['…', 'waiting, or spare'],
  ending: ['■', 'stopping'],
  done: ['✓', 'has succeeded'],
  ended: ['□', 'over, and the job has not succeeded'],
  bad: ['✕', 'lost'],
};
const SILENT_MS = 2500;  // Heartbeats come once a second.
const MANY_NODES = 64;

const cells = [];  // One for each rank, or for each node without ranks.
let marked = 0;    // The cell that the Tab key reaches.

function kindOf(node, rank, late) {
  return late && late[rank] && node.state === 'in_round' ? 'late' : node.kind;
}

// What a cell says, in words.
function rankText(cell, job) {
  const {node, rank} = cell;
  const parts = [`${rank >= 0 ? `Rank ${rank}` : 'A node without ranks'} on ${node.host || node.node_id} (${node.address || 'no address'})`,
    node.state.replace('_', ' ')];
  if (node.step >= 0) parts.push(`step ${number(node.step)}`);
  const late = job.late && job.late[rank];
  if (late) parts.push(`late for ${duration(late.since_ms)}: computes ${number(late.computes_ms)} ms a step, the others ${number(late.others_ms)}`);
  if (node.silent_ms >= SILENT_MS) parts.push(`silent for ${duration(node.silent_ms)}`);
  return parts.join(', ');
}

function buildGrid(grid, plan) {
  grid.replaceChildren();
  cells.length = 0;
  for (const {node, ranks} of plan) {
    const box = element('div', {class: 'node'}, element('span', {}, node.host || node.node_id));
    for (const rank of ranks) {
      const button = element('button', {type: 'button', class: 'cell', tabindex: '-1'});
      button.dataset.cell = cells.length;
      cells.push({button, node, rank, look: ''});
      box.append(button);
    }
    grid.append(box);
  }
  marked = Math.min(marked, Math.max(cells.length - 1, 0));
  if (cells.length > 0) cells[marked].button.tabIndex = 0;
}

let shape = '';

function showRanks(job) {
  const nodes = nodesOf(job);
  const plan = nodes.map(node => {
    const ranks = [];
    if (node.ranks) for (let rank = node.ranks[0]; rank <= node.ranks[1]; ++rank) ranks.push(rank);
    return {node, ranks: ranks.length > 0 ? ranks : [-1]};
  });
  const grid = document.getElementById('ranks');
  const newShape = plan.map(({node, ranks}) => `${node.node_id}:${ranks[0]}+${ranks.length}`).join(' ');
  if (newShape !== shape) {
    const hadFocus = grid.contains(document.activeElement);
    buildGrid(grid, plan);
    if (hadFocus && cells.length > 0) cells[marked].button.focus();
    shape = newShape;
  }
  grid.classList.toggle('many', nodes.length > MANY_NODES);
  let i = 0;
  for (const {node, ranks} of plan) {
    for (const rank of ranks) {
      const cell = cells[i++];
      cell.node = node;
      const kind = kindOf(node, rank, job.late);
      const look = `${KINDS[kind][0]} ${rank >= 0 ? rank : '–'}`.trim();
      if (cell.look === kind + look) continue;
      cell.look = kind + look;
      cell.button.className = `cell ${kind}`;
      cell.button.textContent = look;
      cell.button.setAttribute('aria-label', `${rank >= 0 ? `Rank ${rank}` : 'Node'} on ${node.host || node.node_id}: ${KINDS[kind][1]}`);
    }
  }
  showMarked(job);
  showWaits(nodes);
}

function showMarked(job) {
  const cell = cells[marked];
  setText(document.getElementById('rank'), cell ? `${rankText(cell, job)}.` : '');
}

function showWaits(nodes) {
  const lines = nodes.flatMap(node => (node.waits || []).map(text => `${node.host}: ${text}`));
  const box = document.getElementById('waits');
  box.hidden = lines.length === 0;
  const list = box.querySelector('ul');
  while (list.children.length > lines.length) list.lastChild.remove();
  while (list.children.length < lines.length) list.append(element('li'));
  lines.forEach((line, i) => setText(list.children[i], line));
}

// The cell that the arrow key leads to.
function neighbour(key, from) {
  if (key === 'ArrowRight') return from + 1;
  if (key === 'ArrowLeft') return from - 1;
  if (key === 'Home') return 0;
  if (key === 'End') return cells.length - 1;
  const here = cells[from].button.getBoundingClientRect();
  const down = key === 'ArrowDown' ? 1 : -1;
  let best = from;
  let bestMiss = Infinity;
  let row = null;
  for (let i = from + down; i >= 0 && i < cells.length; i += down) {
    const there = cells[i].button.getBoundingClientRect();
    if (Math.abs(there.top - here.top) < here.height / 2) continue;
    if (row === null) row = there.top;
    if (Math.abs(there.top - row) > here.height / 2) break;
    const miss = Math.abs(there.left - here.left);
    if (miss < bestMiss) [best, bestMiss] = [i, miss];
  }
  return best;
}

function startRanks(getJob, open) {
  const legend = document.getElementById('legend');
  for (const [kind, [sign, meaning]] of Object.entries(KINDS)) {
    const sample = element('span', {class: `cell ${kind}`, 'aria-hidden': 'true'}, sign || '0');
    legend.append(element('li', {}, sample, meaning));
  }
  const grid = document.getElementById('ranks');
  const mark = index => {
    if (cells[marked]) cells[marked].button.tabIndex = -1;
    marked = index;
    cells[marked].button.tabIndex = 0;
    showMarked(getJob());
  };
  const indexOf = target => {
    const button = target.closest('button');
    return button ? Number(button.dataset.cell) : -1;
  };
  grid.addEventListener('keydown', event => {
    if (!['ArrowRight', 'ArrowLeft', 'ArrowUp', 'ArrowDown', 'Home', 'End'].includes(event.key)) return;
    event.preventDefault();
    const index = Math.min(Math.max(neighbour(event.key, marked), 0), cells.length - 1);
    mark(index);
    cells[index].button.focus();
  });
  for (const type of ['focusin', 'pointerover']) {
    grid.addEventListener(type, event => {
      const index = indexOf(event.target);
      if (index >= 0 && index !== marked) mark(index);
    });
  }
  grid.addEventListener('click', event => {
    const index = indexOf(event.target);
    if (index >= 0) open(cells[index]);
  });
}
