--[[
view: keep a Redis view of an app, if the caller is its only writer.

  ARGV[1] the view    ARGV[2] the prefix of its keys    ARGV[3] who writes    ARGV[4] seconds for which it holds the view
  ARGV[5] 1: take the view if nobody holds it; else it must be held already
  ARGV[6] (msgpack) commands of the server, the second word a key behind the view's prefix. Others are:
          copy KEY (a key of ours, with the time that it has left), publish CHANNEL TEXT,
          clear KEY VALUE (delete the key if it has this value), and
          shown COMMAND ARGUMENT ... (a command on the set of jobs that the view has shown under this prefix)
  ARGV[7] (msgpack) {field, value ...} of the bookmark to be set
  returns nothing if somebody else holds the view, else {bookmark, answers}

The bookmark says how far the view is. It moves in the same step as the view's keys.
]]
local bookmark, holder = P .. 'views:' .. ARGV[1], P .. 'views:' .. ARGV[1] .. ':writer'
local held = call('GET', holder)
if held and held ~= ARGV[3] or not held and ARGV[5] ~= '1' then return end
call('SET', holder, ARGV[3], 'PX', math.floor(tonumber(ARGV[4]) * 1000))
local answers = {}
for i, command in ipairs(cmsgpack.unpack(ARGV[6])) do
  if command[1] == 'copy' then
    answers[i] = call('COPY', P .. command[2], ARGV[2] .. command[2], 'REPLACE')
  elseif command[1] == 'publish' then
    answers[i] = call('PUBLISH', ARGV[2] .. command[2], command[3])
  elseif command[1] == 'clear' then
    local key = ARGV[2] .. command[2]
    answers[i] = call('GET', key) == command[3] and call('DEL', key) or 0
  elseif command[1] == 'shown' then
    answers[i] = call(command[2], bookmark .. ':shown:' .. ARGV[2], unpack(command, 3))
  else
    command[2] = ARGV[2] .. command[2]
    answers[i] = call(unpack(command))
  end
end
local facts = cmsgpack.unpack(ARGV[7])
if #facts > 0 then call('HSET', bookmark, unpack(facts)) end
return {call('HGETALL', bookmark), answers}
