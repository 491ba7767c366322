const RealDate = Date, lines = require('readline').createInterface({input: process.stdin});
let compiled, now = 0;
globalThis.Date = class extends RealDate { constructor(...given) { given.length ? super(...given) : super(now); } };
const answer = (value) => process.stdout.write(JSON.stringify(value) + '\n');
let Template;
try { Template = require(process.argv[1]).Template; answer({}); } catch (error) { answer({missing: error.message}); }
lines.on('line', (line) => {
  const asked = JSON.parse(line);
  try {
    if (asked.source !== undefined) { compiled = new Template(asked.source); answer({}); return; }
    now = new RealDate(asked.now).getTime();
    answer({text: compiled.render(asked.variables)});
  } catch (error) { answer({error: String(error.message)}); }
});
