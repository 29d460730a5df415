-- A run's row as its log tells it. ARGV: seen, who, run, version, status, steps, failure, state, created, started or '-',
-- ended or '-', events, events that the row had when it was looked at.
local run = ARGV[3]
local row = read_row(run)
local answers = { counted(), format('%.0f', us) }
if not row or row.version ~= ARGV[4] or row.events ~= ARGV[13] then
  answers[3] = 'C' .. (row and row.version or '')
  return answers
end
local function dated(text) return text ~= '-' and text end
relist(run, way_name(run, row.status, ARGV[5], row.flow), row.number, dated(row.ended), dated(ARGV[11]), row.kept)
-- The next event's id must come after all that were given: fewer events than that need a later date.
if tonumber(ARGV[12]) < tonumber(row.events) then row.last = format('%.0f', math.max(now, tonumber(row.last)) + 1) end
row.version, row.status, row.steps, row.failure, row.state = text_of(tonumber(ARGV[4]) + 1), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
row.started, row.ended, row.events = ARGV[10], ARGV[11], ARGV[12]
write_row(run, row)
local said = call('GET', START .. run)
if said then call('SET', START .. run, ARGV[9] .. match(said, '^%S+(.*)$')) end
finish(ARGV[2])
answers[1], answers[3] = counted(), 'ok'
return answers
