"use strict";
const data = JSON.parse(document.getElementById("torchlens-data").textContent);
const main = document.getElementById("torchlens");
const heading = document.createElement("h1");
heading.textContent = data.title;
main.append(heading);
const list = document.createElement("ol");
for (const label of data.ops.label) {
  const item = document.createElement("li");
  item.textContent = data.texts[label];
  list.append(item);
}
main.append(list);
