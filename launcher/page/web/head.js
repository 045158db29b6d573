// What is true of the job as a whole: its state, its figures, its first failure.

const STATES = {
  waiting: '… waiting', running: '▶ running', recovering: '↻ recovering', stopping: '■ stopping',
};

const MAX_LINKS = 8;

function showState(job) {
  const state = document.getElementById('state');
  const failed = job.state === 'finished' && job.exit_code !== 0;
  state.className = `state ${failed ? 'failed' : job.state}`;
  setText(state, job.state === 'finished' ? (failed ? `✕ failed with status ${job.exit_code}` : '✓ finished') : STATES[job.state] || job.state);
  setText(document.getElementById('job'), job.job_id);
  setText(document.getElementById('program'), job.program || '');
  setText(document.getElementById('waiting'), job.waiting_for ? `Waiting: ${job.waiting_for}` : job.summary || '');
  const title = `${job.state} · ${job.job_id} · ddp-run`;
  if (document.title !== title) document.title = title;
}

function isHere(node) {
  return String(node.replica_port) === location.port && [node.address, node.host].includes(location.hostname);
}

// If the coordinator is lost, another ddp-run of the job coordinates it soon. Any of them sends the browser on to that one.
function showElsewhere(job, isLost) {
  const line = document.getElementById('elsewhere');
  const others = isLost && job !== null ? nodesOf(job).filter(node => node.replica_port > 0 && !isHere(node)) : [];
  line.hidden = others.length === 0;
  const key = others.map(node => `${node.host} ${node.address} ${node.replica_port}`).join('\n') + location.hash;
  if (line.hidden || line.dataset.key === key) return;
  line.dataset.key = key;
  const links = others.slice(0, MAX_LINKS).map(node => {
    const host = node.address.includes(':') ? `[${node.address}]` : node.address;
    return element('a', {href: `http://${host}:${node.replica_port}/${location.hash}`}, node.host);
  });
  line.replaceChildren('The job may go on under another node. Its page is at any of: ', ...links.flatMap((link, i) => i > 0 ? [', ', link] : [link]), '.');
}

// The node whose first worker speaks for the job.
function speaker(job) {
  return nodesOf(job).find(node => node.group_rank === 0) || {};
}

function factsOf(job) {
  const nodes = nodesOf(job);
  const first = speaker(job);
  const connected = nodes.filter(node => node.state !== 'lost' && node.state !== 'awaited').length;
  const wanted = job.min_nodes === job.max_nodes ? `${job.max_nodes}` : `${job.min_nodes} to ${job.max_nodes}`;
  const facts = [
    ['Elapsed', duration(job.elapsed_ms)],
    ['Nodes', `${connected} of ${wanted}`],
    ['Workers', job.world_size > 0 ? number(job.world_size) : 'none run'],
    ['Round', job.round >= 0 ? number(job.round) : 'none yet'],
    ['Restarts left', `${number(Math.max(job.max_restarts - job.restarts, 0))} of ${number(job.max_restarts)}`],
    ['Failures', number(job.failures)],
  ];
  if (job.best_step >= 0) facts.push(['Step', number(first.step >= 0 ? first.step : job.best_step)]);
  for (const [name, field] of [['Loss', 'loss'], ['Samples/s', 'samples_per_second'], ['Steps/s', 'steps_per_second']]) {
    if (first[field] !== undefined) facts.push([name, number(first[field])]);
    if (field === 'loss' && first.loss_is) facts.push([name, `✕ ${first.loss_is}, has diverged`, 'wrong']);
  }
  return facts;
}

function showFacts(job) {
  const list = document.getElementById('facts');
  const facts = factsOf(job);
  while (list.children.length > facts.length) list.lastChild.remove();
  while (list.children.length < facts.length) list.append(element('div', {}, element('dt'), element('dd')));
  facts.forEach(([name, value, look], i) => {
    list.children[i].className = look || '';
    setText(list.children[i].children[0], name);
    setText(list.children[i].children[1], value);
  });
  const first = speaker(job);
  const progress = document.getElementById('progress');
  progress.hidden = !(first.total_steps > 0 && first.step >= 0);
  if (progress.hidden) return;
  progress.firstChild.value = Math.min(first.step / first.total_steps, 1);
  const left = first.eta_seconds >= 0 && job.state === 'running' ? `; about ${duration(first.eta_seconds * 1000)} left` : '';
  setText(progress.lastChild, `step ${number(first.step)} of ${number(first.total_steps)}${left}`);
}

function showFailure(job) {
  const failure = job.first_failure;
  document.getElementById('failure').hidden = !failure;
  if (!failure) return;
  const log = failure.log_path ? ` Its log is ${failure.log_path}.` : '';
  setText(document.getElementById('failure-title'), `First failure of round ${failure.round}`);
  setText(document.getElementById('failure-text'), `${failure.text}.${log}`);
}
