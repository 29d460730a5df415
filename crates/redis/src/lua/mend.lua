-- A run's row as its log tells it. ARGV: seen, who, run, version, status, completed, failed, retries, failure, state,
-- created, started or '', ended or '', events.
local run, key = ARGV[3], base .. ':run:' .. ARGV[3]
local row = call('HMGET', key, 'version', 'status', 'ended', 'number', 'flow', 'trimmed', 'events', 'last')
local answers = { tostring(n), format('%.0f', us) }
if row[1] ~= ARGV[4] then
  answers[3] = 'C' .. (row[1] or '')
  return answers
end
local ended = ARGV[13] ~= '' and ARGV[13]
relist(run, row[5], row[4], row[2], row[3], ARGV[5], ended, base .. (row[6] and ':trimmed' or ':ended'))
local set = { version = tonumber(ARGV[4]) + 1, status = ARGV[5], completed = ARGV[6], failed = ARGV[7],
  retries = ARGV[8], state = ARGV[10], created = ARGV[11], events = ARGV[14] }
-- The next event's id must come after all that were given: fewer events than that need a later date.
if tonumber(ARGV[14]) < tonumber(row[7]) then set.last = math.max(now, tonumber(row[8])) + 1 end
local gone = {}
for field, value in pairs({ failure = ARGV[9], started = ARGV[12], ended = ARGV[13] }) do
  if value == '' then gone[#gone + 1] = field else set[field] = value end
end
if #gone > 0 then spread({ 'HDEL', key }, gone, 1) end
set_fields(key, set)
finish(ARGV[2])
answers[1], answers[3] = tostring(n), 'ok'
return answers
