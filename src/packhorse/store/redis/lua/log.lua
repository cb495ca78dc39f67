--[[
log: append lines, and drop the oldest of a job that has more than so many bytes.

  ARGV[1] bytes kept per job    ARGV[2] (msgpack) per job {job, head, text, head, text ...}
  returns nothing

A line is kept as "number head\ntext". Numbers go on where lines were dropped. It counts for one byte at least, for
empty ones would be kept without end. Lines of a job that is not there are dropped: they must not bring anything back.
]]
local keep, moved = tonumber(ARGV[1]), {}
for _, lines in ipairs(cmsgpack.unpack(ARGV[2])) do
  local job = lines[1]
  local record, list = P .. 'job:' .. job, P .. 'log:' .. job
  if call('EXISTS', record) == 1 then
    local known = call('HMGET', record, 'log_last', 'log_bytes')
    local last, size = tonumber(known[1] or 0), tonumber(known[2] or 0)
    for i = 2, #lines, 2 do
      last, size = last + 1, size + math.max(1, #lines[i + 1])
      call('RPUSH', list, last .. ' ' .. lines[i] .. '\n' .. lines[i + 1])
    end
    while size > keep do
      local line = call('LPOP', list)
      if not line then break end
      size = size - math.max(1, #line - string.find(line, '\n', 1, true))
    end
    call('HSET', record, 'log_last', last, 'log_bytes', size)
    local ends = call('PTTL', record)
    if ends > 0 then call('PEXPIRE', list, ends) end
    moved[#moved + 1] = job
  end
end
if #moved > 0 then tell(moved) end
