-- Takes a part of all keys away but the shard's own `meta`. ARGV: seen, where to go on.
local found = call('SCAN', ARGV[2], 'MATCH', base .. ':*', 'COUNT', 1000)
for _, key in ipairs(found[2]) do
  if key ~= KEYS[1] then call('UNLINK', key) end
end
return { counted(), format('%.0f', us), found[1] }
