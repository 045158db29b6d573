// Which job is shown, and when what is drawn.

let documentNow = null;
let isDue = false;  // It will be drawn at the next frame.

const isFile = document.getElementById('document').textContent.trim() !== '';

// The job that the address names, or one that runs, or the first.
function chosenJob() {
  const jobs = documentNow ? documentNow.jobs : {};
  const wanted = new URLSearchParams(location.hash.slice(1)).get('job');
  if (wanted !== null && Object.hasOwn(jobs, wanted)) return jobs[wanted];
  const all = Object.values(jobs);
  return all.find(job => job.state !== 'finished') || all[0] || null;
}

function showJobs(chosen) {
  const ids = Object.keys(documentNow.jobs);
  const nav = document.getElementById('jobs');
  nav.hidden = ids.length < 2;
  const key = ids.join('\n') + chosen.job_id;
  if (nav.dataset.key === key) return;
  nav.dataset.key = key;
  nav.replaceChildren(...ids.map(id => {
    const link = element('a', {href: `#${new URLSearchParams({job: id})}`}, id);
    if (id === chosen.job_id) link.setAttribute('aria-current', 'page');
    return link;
  }));
}

function showNoJob() {
  setText(document.getElementById('job'), 'ddp-run');
  setText(document.getElementById('program'), 'There is no job here now.');
  setText(document.getElementById('state'), '');
  document.getElementById('state').className = '';
  document.getElementById('jobs').hidden = true;
  document.title = 'ddp-run';
}

function draw() {
  isDue = false;
  const job = chosenJob();
  document.querySelector('main').hidden = job === null;
  if (job === null) {
    showNoJob();
    return;
  }
  showJobs(job);
  showState(job);
  showFacts(job);
  showFailure(job);
  showCurves(job);
  showRanks(job);
  showRounds(job);
  showCheckpoints(job);
}

function drawSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(draw);
}

startRanks(chosenJob, cell => {
  if (!isFile) openOutput(chosenJob().job_id, cell);
});
if (isFile) document.getElementById('ranks').setAttribute('aria-label', 'Ranks; arrow keys move');
document.getElementById('failure-more').addEventListener('click', () => openFailure(chosenJob().job_id, documentNow.report));
addEventListener('hashchange', drawSoon);
addEventListener('resize', drawSoon);
addEventListener('scroll', drawSoon, {passive: true});
followFeed(state => {
  documentNow = state;
  drawSoon();
}, (text, isLost) => {
  const link = document.getElementById('link');
  setText(link, text);
  link.classList.toggle('lost', isLost);
  showElsewhere(chosenJob(), isLost);
});
