-- Entries of a run's log, one by one, as none tells its size before it is read. ARGV: seen, run, where to begin, how many at most,
-- and the bytes that are enough. Gives whether there may be more, and the entries.
local key, from, most, enough = LOG .. ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local entries, bytes = {}, 0
while #entries < most and bytes < enough do
  local entry = call('XRANGE', key, from, '+', 'COUNT', 1)[1]
  if not entry then break end
  entries[#entries + 1] = entry
  bytes = bytes + #entry[2][2]
  from = '(' .. entry[1]
end
local more = (#entries == most or bytes >= enough) and '1' or '0'
return { counted(), format('%.0f', us), more, entries }
