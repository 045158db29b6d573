// Which job is shown, and when what is drawn.

let documentNow = null;
let isDue = false;  // It will be drawn at the next frame.

const isFile = document.getElementById('document').textContent.trim() !== '';

let chosenId = null;  // Once chosen, a job stays shown when others come, and when it is over.

// The job's id in the address, or null.
function wantedId() {
  return new URLSearchParams(location.hash.slice(1)).get('job');
}

// The job that the address names, or else the one that was shown before, or one that runs, or the first.
function chosenJob() {
  const jobs = documentNow ? documentNow.jobs : {};
  const wanted = wantedId();
  if (wanted !== null) {
    chosenId = wanted;
  } else if (chosenId === null || !Object.hasOwn(jobs, chosenId)) {
    const all = Object.values(jobs);
    const first = all.find(job => job.state !== 'finished') || all[0];
    if (first) chosenId = first.job_id;
  }
  return chosenId !== null && Object.hasOwn(jobs, chosenId) ? jobs[chosenId] : null;
}

function showJobs(chosen) {
  const ids = Object.keys(documentNow ? documentNow.jobs : {});
  const nav = document.getElementById('jobs');
  nav.hidden = ids.length < (chosen === null ? 1 : 2);
  const shownId = chosen === null ? null : chosen.job_id;
  const key = JSON.stringify([ids, shownId]);
  if (nav.dataset.key === key) return;
  nav.dataset.key = key;
  nav.replaceChildren(...ids.map(id => {
    const link = element('a', {href: `#${new URLSearchParams({job: id})}`}, id);
    if (id === shownId) link.setAttribute('aria-current', 'page');
    return link;
  }));
}

function showNoJob() {
  const wanted = wantedId();
  setText(document.getElementById('job'), wanted === null ? 'ddp-run' : wanted);
  setText(document.getElementById('program'), wanted === null ? 'There is no job here now.' : 'There is no job with this name here now.');
  setText(document.getElementById('state'), '');
  document.getElementById('state').className = '';
  document.title = 'ddp-run';
}

function draw() {
  isDue = false;
  const job = chosenJob();
  document.querySelector('main').hidden = job === null;
  showJobs(job);
  if (job === null) {
    showNoJob();
    return;
  }
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
