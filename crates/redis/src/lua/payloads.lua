-- The data of events by their slots. ARGV: seen, run, slots.
local fields = {}
for i = 3, #ARGV do fields[i - 2] = 's' .. ARGV[i] end
local answers = { tostring(n), format('%.0f', us) }
local ids = fetch(base .. ':run:' .. ARGV[2], fields)
for i, id in ipairs(ids) do
  local found = id and call('XRANGE', base .. ':log:' .. ARGV[2], id, id)[1]
  answers[i + 2] = found and found[2][8] or ''
end
return answers
