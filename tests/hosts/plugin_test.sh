# A plugin that keeps dml to itself, in two copies.
. tests/hosts/host.sh

check "the plugin builds" $QUICK -std=c99 $WARN -I. -fPIC -shared -fvisibility=default tests/hosts/plugin.c \
    -o "$WORK/one.so" -lm -lpthread
cp "$WORK/one.so" "$WORK/two.so"
exports_its_own_name_only() {
    nm -D --defined-only "$WORK/one.so" | awk '{ print $3 }' | grep -v '^_' | tee "$WORK/names"
    [ "$(cat "$WORK/names")" = plugin_learn ]
}
check "it exports plugin_learn and nothing else" exports_its_own_name_only
check "its host builds" $CC -std=c99 -O1 $WARN tests/hosts/plugin_host.c -o "$WORK/plugin_host" -lpthread -ldl
check "two copies in one process" "$WORK/plugin_host" "$WORK/one.so" "$WORK/two.so"
report hosts/plugin
