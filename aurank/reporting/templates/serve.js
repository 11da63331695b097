const PAGE = 24, element = id => document.getElementById(id), steps = document.querySelectorAll("[data-step]");
const uploads = new Map();  // photos of this visit by the number in the address
let limits = null, classes = new Set(), running = null, shownBefore = false;

// What is shown stands in the address, so that back, forward and a bookmark of a gallery image work.
const asked = () => {
  const found = new URLSearchParams(location.hash.slice(1));
  return { row: found.get("row"), upload: found.get("upload"), text: found.get("text") || "", class: found.get("class") || "", least: found.get("least"), offset: Number(found.get("offset")) || 0 };
};
const address = wanted => "#" + new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));

async function answered(request) {
  let response;
  try { response = await request; }
  catch (error) { throw error.name === "AbortError" ? error : new Error("The server does not answer; is it still running?"); }
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  return content;
}

function ask(wanted, signal, limit = PAGE) {
  const part = { offset: wanted.offset, limit, ...(wanted.class && { class: wanted.class }), ...(wanted.text && { text: wanted.text }) };
  if (wanted.row !== null || (wanted.text && wanted.upload === null)) {
    const body = JSON.stringify({ ...(wanted.row !== null && { row: Number(wanted.row) }), ...part });
    return answered(fetch("api/search", { method: "POST", headers: { "content-type": "application/json" }, body, signal }));
  }
  if (wanted.upload === null) return answered(fetch("api/images?" + new URLSearchParams(part), { signal }));
  const form = new FormData();
  form.set("photo", uploads.get(wanted.upload).file);
  for (const [name, value] of Object.entries(part)) form.set(name, value);
  return answered(fetch("api/search", { method: "POST", body: form, signal }));
}

async function load() {
  const wanted = asked();
  if (wanted.upload !== null && !uploads.has(wanted.upload)) return void location.replace("#");  // of an earlier visit
  running?.abort();
  const own = running = new AbortController();
  element("results").setAttribute("aria-busy", "true");
  try {
    show(wanted, await ask(wanted, own.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    show(wanted, { images: [], total: 0, query: null, offset: 0 });
    say(error.message, true);
  }
  element("results").removeAttribute("aria-busy");
}

function show(wanted, answer) {
  const isSearch = wanted.row !== null || wanted.upload !== null || wanted.text !== "", found = reaching(wanted, answer.neighbours ?? answer.images);
  showQuery(wanted, answer.query ?? null, isSearch);
  element("heading").textContent = isSearch ? "Nearest images" : "Gallery";
  element("text").value = wanted.text;
  element("class").value = wanted.class;
  element("least").value = wanted.least ?? "";
  element("above").hidden = element("download").hidden = !isSearch;
  const names = shortNames(found.map(one => one.name));
  element("list").replaceChildren(...found.map((one, place) => tile(one, names[place], wanted.text ? null : answer.query?.class ?? null)));
  const last = answer.offset + found.length, isCut = found.length < (answer.neighbours ?? answer.images).length;
  const total = isCut ? `those from ${wanted.least}` : answer.total.toLocaleString("en");
  const cut = isSearch && answer.total === limits?.most_neighbours ? "the nearest " : "";
  const range = found.length ? `${(answer.offset + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${cut}${total}` : "";
  document.querySelectorAll(".range").forEach(one => { one.textContent = range; });
  steps.forEach(one => { one.disabled = one.dataset.step < 0 ? wanted.offset === 0 : isCut || last >= answer.total; });
  element("below").hidden = found.length < PAGE;
  say(found.length ? "" : "There are none.");
  if (shownBefore) { element("heading").focus({ preventScroll: true }); scrollTo({ top: 0 }); }
  shownBefore = true;
}

function showQuery(wanted, image, isSearch) {
  element("clear").hidden = !isSearch;
  element("query").hidden = wanted.row === null && wanted.upload === null;
  element("invitation").textContent = isSearch ? "Drop or paste another photo, or click an image below." : "Drop a photo here, paste one, or click an image below.";
  if (element("query").hidden) return;
  const photo = uploads.get(wanted.upload);
  element("preview").parentNode.hidden = false;
  element("preview").src = photo ? photo.url : thumbnail(wanted.row);
  element("caption").textContent = photo ? photo.file.name : image ? [image.class, lastName(image.name)].filter(Boolean).join(" · ") : "";
  element("preview").alt = `Searched with ${element("caption").textContent}`;
}

const lastName = name => name.split("/").pop();
// The last names; where some are equal, with the folders by which they differ.
const shortNames = names => names.map(name => {
  const folders = name.split("/"), last = folders.pop();
  const others = names.filter(other => other !== name && lastName(other) === last).map(other => other.split("/").slice(0, -1));
  if (!others.length) return last;
  let start = 0, end = folders.length;
  while (end > 0 && others.every(other => other.at(end - folders.length - 1) === folders[end - 1])) end -= 1;
  while (start < end - 1 && others.every(other => other[start] === folders[start])) start += 1;
  return [...folders.slice(start, end), ...(end && end < folders.length ? ["…"] : []), last].join("/");
});
const thumbnail = row => `api/images/${encodeURIComponent(row)}/thumbnail`;

function tile(one, shortName, wantedClass) {
  const item = document.createElement("li"), link = document.createElement("a"), picture = document.createElement("span"), image = new Image();
  item.className = "item";
  link.href = address({ row: String(one.row) });
  link.title = one.name;
  picture.className = "picture";
  image.loading = "lazy";
  image.alt = one.name;
  image.addEventListener("error", () => picture.replaceChildren(text("", "no picture")));
  image.src = thumbnail(one.row);
  picture.append(image);
  link.append(picture);
  if (one.score !== undefined) {
    link.append(text("score", `${one.rank} · ${one.score.toFixed(3)}`));
    if (wantedClass && one.class) {
      item.classList.add(one.class === wantedClass ? "right" : "wrong");
      link.append(text("mark", one.class === wantedClass ? "✓ same class" : "✗ other class"));
    }
  }
  if (one.class) link.append(text("name class", one.class));
  link.append(text("name", shortName));
  item.append(link);
  if (one.score !== undefined && !asked().text && (asked().row ?? asked().upload) !== null) item.append(Object.assign(document.createElement("button"), { textContent: "Why?", onclick: () => explain(one.row) }));
  return item;
}

async function explain(image) {
  const { row, upload } = asked(), form = new FormData(), headers = row === null ? {} : { "content-type": "application/json" };
  if (row === null) form.set("photo", uploads.get(upload).file);
  const body = row === null ? form : JSON.stringify({ row: Number(row) });
  const reason = await answered(fetch(`api/images/${image}/explain`, { method: "POST", headers, body })).catch(error => ({ text: error.message, pictures: [] }));
  element("maps").replaceChildren(...reason.pictures.map(src => Object.assign(new Image(), { src, alt: "" })));
  element("reason").textContent = reason.text;
  element("why").showModal();
}

function text(kind, content) {
  const made = document.createElement("span");
  made.className = kind;
  // The lines of a name end after these signs before anywhere else, as in the other pages.
  for (const part of kind.startsWith("name") ? content.split(/(?<=[/_-])/) : [content]) made.append(part, document.createElement("wbr"));
  return made;
}

function say(words, isFailure = false) {
  element("message").textContent = words;
  element("message").className = isFailure ? "failed" : "";
}

function searchWith(file) {
  if (!file) return say("That was no file; drop or choose a photo.", true);
  if (limits && file.size > limits.max_upload_bytes)
    return say(`A photo may have ${(limits.max_upload_bytes / 2 ** 20).toFixed(0)} MiB at most; ${file.name} has ${(file.size / 2 ** 20).toFixed(1)}.`, true);
  const number = String(uploads.size + 1);
  uploads.set(number, { file, url: URL.createObjectURL(file) });
  location.hash = address({ upload: number });
}

// Lists are ordered by score, so a threshold cuts their ends off.
const reaching = (wanted, found) => wanted.least === null ? found : found.filter(one => one.score >= Number(wanted.least));

async function download() {
  const wanted = asked(), lines = [["rank", "score", "class", "name"]];
  try {
    for (let offset = 0, total = 1; offset < total; offset += 100) {
      const answer = await ask({ ...wanted, offset }, undefined, 100), near = reaching(wanted, answer.neighbours);
      total = near.length < answer.neighbours.length ? 0 : answer.total;
      lines.push(...near.map(one => [one.rank, one.score, one.class ?? "", one.name]));
    }
  } catch (error) { return say(error.message, true); }
  // An apostrophe keeps a spreadsheet from running a name as a formula.
  const cell = value => typeof value === "number" ? value : `"${value.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.map(line => line.map(cell).join(",") + "\n").join("")], { type: "text/csv" }));
  link.download = "neighbours.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const go = changes => { location.hash = address({ ...asked(), ...changes }); };
element("preview").addEventListener("error", () => { element("preview").parentNode.hidden = true; });  // no photo, or none that this browser shows
element("file").addEventListener("change", event => { if (event.target.files.length) searchWith(event.target.files[0]); event.target.value = ""; });
element("class").addEventListener("change", event => {
  const name = event.target.value;
  if (name && !classes.has(name)) return say(`There is no class ${name}; choose one of the list.`, true);
  go({ class: name, offset: 0 });
});
element("words").addEventListener("submit", event => { event.preventDefault(); go({ text: element("text").value.trim(), offset: 0 }); });
element("least").addEventListener("change", event => go({ least: event.target.value, offset: 0 }));
element("download").addEventListener("click", download);
steps.forEach(one => one.addEventListener("click", () => go({ offset: Math.max(0, asked().offset + one.dataset.step * PAGE) })));
// Anywhere on the page: a photo that misses the frame must not take its place.
addEventListener("dragover", event => { event.preventDefault(); element("drop").classList.add("over"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) element("drop").classList.remove("over"); });
addEventListener("drop", event => { event.preventDefault(); element("drop").classList.remove("over"); searchWith(event.dataTransfer.files[0]); });
addEventListener("paste", event => { if (event.clipboardData.files.length) searchWith(event.clipboardData.files[0]); });
addEventListener("hashchange", load);
element("why").addEventListener("click", event => event.currentTarget.close());

async function start() {
  try {
    const [info, known] = await Promise.all([answered(fetch("api/info")), answered(fetch("api/classes"))]);
    limits = info;
    element("about").textContent = info.index + (info.classes ? `; ${info.classes.toLocaleString("en")} classes` : "");
    classes = new Set(known.classes.map(one => one.name));
    element("classes").append(...known.classes.map(one => new Option(`${one.images.toLocaleString("en")} images`, one.name)));
    element("filter").hidden = !known.classes.length;
    await load();
  } catch (error) { say(error.message, true); }
}
start();
