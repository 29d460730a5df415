-- A run's row as its log tells it. ARGV: seen, who, run, version, status, steps, failure, state, created, started or '',
-- ended or '', events.
local run, key = ARGV[3], base .. ':run:' .. ARGV[3]
local row = call('HMGET', key, 'version', 'status', 'ended', 'number', 'flow', 'trimmed', 'events', 'last')
local answers = { tostring(n), format('%.0f', us) }
if row[1] ~= ARGV[4] then
  answers[3] = 'C' .. (row[1] or '')
  return answers
end
local ended = ARGV[11] ~= '' and ARGV[11]
relist(run, row[5], row[4], row[2], row[3], ARGV[5], ended, base .. (row[6] and ':trimmed' or ':ended'))
local set = { 'version', tonumber(ARGV[4]) + 1, 'status', ARGV[5], 'steps', ARGV[6], 'state', ARGV[8], 'created', ARGV[9],
  'events', ARGV[12] }
local gone = {}
local function keep(field, value)
  if value == '' then
    gone[#gone + 1] = field
  else
    set[#set + 1] = field
    set[#set + 1] = value
  end
end
keep('failure', ARGV[7])
keep('started', ARGV[10])
keep('ended', ARGV[11])
-- The next event's id must come after all that were given: fewer events than that need a later date.
if tonumber(ARGV[12]) < tonumber(row[7]) then keep('last', format('%.0f', math.max(now, tonumber(row[8])) + 1)) end
if #gone > 0 then spread({ 'HDEL', key }, gone, 1) end
spread({ 'HSET', key }, set, 2)
finish(ARGV[2])
answers[1], answers[3] = tostring(n), 'ok'
return answers
