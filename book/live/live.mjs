// On every page. A part of the lab that can run here gets a button below its stored answer; nothing
// is loaded before it is pressed. A moving picture is loaded when it comes into view.
//
//     <div class="lab-live" data-call="card('ze-1')">the stored answer</div>
//     <div class="lab-moving" data-picture="ring"><script type="application/json">...</script> ...</div>

const canRun = typeof WebAssembly === "object" && typeof Worker === "function";

for (const place of canRun ? document.querySelectorAll(".lab-live") : []) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "lab-start";
  button.textContent = "Use it here";
  const status = document.createElement("span");
  status.className = "lab-status";
  status.setAttribute("role", "status");
  status.textContent = "Python runs in this page: 8 MB, loaded once.";
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const { start } = await import("./parts.mjs");
      await start(place, (words) => { status.textContent = words; });
      button.remove();
      status.textContent = "";
    } catch (error) {
      button.remove();
      status.textContent = `It could not start: ${error.message}. The stored answer stays; reload the page to try again.`;
    }
  });
  place.after(button, status);
}

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    play(target);
  }
});
for (const place of document.querySelectorAll(".lab-moving")) seen.observe(place);

async function play(place) {
  const data = JSON.parse(place.querySelector('script[type="application/json"]').textContent);
  const { default: picture } = await import(`./moving/${place.dataset.picture}.mjs`);
  const el = document.createElement("div");
  place.replaceChildren(el);
  picture.render({ el, model: { get: () => data, on() {}, off() {}, set() {}, save_changes() {} } });
}
