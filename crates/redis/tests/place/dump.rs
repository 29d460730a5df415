//! What a server holds, as text that can be compared.

use super::server::Server;

/// All keys under a prefix with what they hold, but for `meta`. Of the feed the runs and events count, not the entries.
const DUMP: &str = r"
local found = {}
local head = '{' .. ARGV[1] .. ':0}:'
for _, key in ipairs(redis.call('KEYS', head .. '*')) do
  local name, kind, parts = string.sub(key, #head + 1), redis.call('TYPE', key).ok, {}
  if kind == 'string' then parts = { redis.call('GET', key) }
  elseif kind == 'set' then parts = redis.call('SMEMBERS', key); table.sort(parts)
  elseif kind == 'zset' then parts = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'hash' then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do parts[#parts + 1] = all[i] .. '=' .. all[i + 1] end
    table.sort(parts)
  else
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      local said = table.concat(entry[2], '=')
      if name == 'feed' then
        for ref in string.gmatch(entry[2][2], '[^\n]+') do parts[#parts + 1] = ref end
      else
        parts[#parts + 1] = entry[1] .. ' ' .. said
      end
    end
    if name == 'feed' then table.sort(parts) end
  end
  if name ~= 'meta' then found[#found + 1] = name .. ' (' .. kind .. '): ' .. table.concat(parts, ' | ') end
end
table.sort(found)
return table.concat(found, '\n\n')";

/// What lies under a prefix. Numbers that order runs, jobs and values are microseconds of whoever wrote: they are not shown.
pub fn dump(server: &Server, prefix: &str) -> String {
    let found = server.ask(&["EVAL", DUMP, "0", prefix]);
    let mut shown = String::new();
    for part in found.split_inclusive(|sign: char| !sign.is_ascii_digit()) {
        let digits = part.trim_end_matches(|sign: char| !sign.is_ascii_digit());
        shown.push_str(if digits.len() == 16 { "NUMBER" } else { digits });
        shown.push_str(&part[digits.len()..]);
    }
    shown
}
