"""The look of the reports: light or dark as the reader's system is, from a phone to a wide screen."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f5f4f0; --card: #ffffff; --ink: #1c1c1f; --soft: #63636b; --line: #e3e1da; --track: #ecebe6;
  --cool: 37 99 190; --warm: 205 88 24; --kept: 20 128 104;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131315; --card: #1d1d20; --ink: #ececef; --soft: #9d9da6; --line: #323238; --track: #2b2b30;
    --cool: 92 154 245; --warm: 243 136 72; --kept: 72 190 158;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 20px 64px; }
h1 {
  font-size: 30px; line-height: 1.2; margin: 4px 0 6px; letter-spacing: -.02em;
  overflow-wrap: anywhere;
}
h2 { font-size: 18px; margin: 0 0 4px; letter-spacing: -.01em; }
h3 { font-size: 14px; margin: 0 0 8px; font-weight: 600; }
.wide + h3, .wide + div, .wide + dl, div + h3 { margin-top: 20px; }
.side h3 { margin-top: 0; }
p { margin: 0 0 14px; }
.brand { color: var(--soft); font-size: 13px; letter-spacing: .04em; margin: 0; }
.lead { color: var(--soft); margin-bottom: 24px; overflow-wrap: anywhere; }
.hint { color: var(--soft); font-size: 13.5px; max-width: 96ch; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px 22px;
  margin: 0 0 18px;
}
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 0 0 18px;
}
.tile {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px;
}
.tile b {
  display: block; font-size: 22px; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums;
}
.tile span { color: var(--soft); font-size: 13px; }
.side {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 24px;
}
.side .wide { margin: 0; padding: 0; }
.side .map.roomy td.cell { min-width: 62px; }
.stacked > div { margin-bottom: 20px; }
.wide { overflow-x: auto; margin: 0 -22px; padding: 0 22px; }
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px;
}
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; white-space: nowrap; }
th, td { padding: 7px 10px; border-bottom: 1px solid var(--line); vertical-align: middle; }
tr > :first-child { padding-left: 0; }
tr > :last-child { padding-right: 0; }
tbody tr:last-child > * { border-bottom: 0; }
.number { text-align: right; white-space: nowrap; }
.why { min-width: 200px; }
.name { font-weight: 500; color: var(--ink); overflow-wrap: anywhere; min-width: 130px; }
.chip {
  display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: 0 8px;
  font-size: 12px; color: var(--soft); white-space: nowrap;
}
.kept { color: rgb(var(--kept)); border-color: rgb(var(--kept) / .5); }
.index {
  display: inline-block; min-width: 20px; height: 20px; line-height: 20px; padding: 0 4px;
  border-radius: 6px; background: var(--track); color: var(--ink); font-size: 12px; font-weight: 600;
  text-align: center; margin-right: 8px;
}
.bar {
  position: relative; height: 10px; min-width: 110px; border-radius: 99px; background: var(--track);
}
.bar i {
  position: absolute; left: 0; top: 0; bottom: 0; border-radius: 99px; background: rgb(var(--cool));
}
.bar i.less { background: rgb(var(--warm)); }
.bar i.kept { background: rgb(var(--kept)); }
.bar b {
  position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--ink); opacity: .45;
}
.map { width: auto; border-spacing: 2px; }
.map th, .map td { border: 0; padding: 5px 8px; }
.map tr > :first-child { padding-left: 0; }
.map td.cell { text-align: center; min-width: 54px; border-radius: 6px; font-size: 13px; }
.map th.head { text-align: center; }
.map.dense td.cell { min-width: 20px; padding: 3px 0; font-size: 0; height: 20px; }
.map.dense th.head { font-size: 11px; padding: 2px 0; }
.map.dense .head .index { margin: 0; }
.map th.row { max-width: 200px; overflow: hidden; text-overflow: ellipsis; color: var(--ink); }
.map.roomy { width: 100%; }
.map.roomy td.cell { min-width: 76px; padding: 6px 8px; }
.map.roomy th.head { max-width: 100px; overflow: hidden; text-overflow: ellipsis; color: var(--ink); }
.map tr > :first-child { position: sticky; left: 0; background: var(--card); }
.cool { background: rgb(var(--cool) / var(--v)); }
.warm { background: rgb(var(--warm) / var(--v)); }
.none { color: var(--soft); opacity: .6; }
code, pre, .block {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px;
}
.block { color: var(--ink); }
pre {
  background: var(--track); border-radius: 8px; padding: 12px 14px; overflow-x: auto; margin: 8px 0 0;
}
code { overflow-wrap: anywhere; }
.group th { padding-top: 14px; font-weight: 600; }
.scatter { width: 100%; max-width: 860px; height: auto; display: block; }
.scatter line { stroke: var(--line); }
.scatter text { fill: var(--soft); font-size: 12px; }
.scatter .end { text-anchor: end; }
.scatter .tried { fill: rgb(var(--cool) / .35); }
.scatter .merged { fill: rgb(var(--warm)); }
.scatter .picked { fill: rgb(var(--kept)); stroke: var(--ink); }
ul { margin: 0; padding-left: 20px; }
li { margin: 0 0 6px; overflow-wrap: anywhere; }
li.warned::marker { color: rgb(var(--warm)); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 18px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
details { margin-top: 14px; }
@media (max-width: 640px) {
  main { padding: 24px 12px 40px; }
  section { padding: 16px 14px; }
  .wide { margin: 0 -14px; padding: 0 14px; }
  h1 { font-size: 24px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 10px; }
  .map.roomy td.cell { min-width: 62px; }
  .map.roomy th.head { max-width: 84px; }
  .map th.row { max-width: 128px; }
}
@media print { section { break-inside: avoid; } }
"""
